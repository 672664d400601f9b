"""Custom gradients that are freed together with their graph."""

import weakref

import tensorflow as tf


def custom_gradient(function):
    """Wraps `tf.custom_gradient` so that TensorFlow does not keep gradients for ever.

    TensorFlow never frees the gradient function and the outputs of a call in a graph,
    which keep the graph alive, and the layers that the gradient function calls. Here
    the graph keeps the gradient function, and TensorFlow gets a weak reference to it.

    As there, `function` returns a tensor or a tuple of tensors, and the function of
    their gradients. It must not read variables.
    """

    def call(*inputs):
        if tf.executing_eagerly():
            return tf.custom_gradient(function)(*inputs)
        found, gradients, is_one = [], [], False

        @tf.custom_gradient
        def with_weak_gradient(*inputs):
            nonlocal is_one
            outputs, gradient = function(*inputs)
            is_one = tf.is_tensor(outputs)
            found.extend([outputs] if is_one else outputs)
            gradients.append(gradient)
            reference = weakref.ref(gradient)
            return found, lambda *doutputs: reference()(*doutputs)

        outputs = with_weak_gradient(*inputs)
        found.clear()
        found.extend([None] * len(outputs))  # TensorFlow keeps this list
        outputs[0].op.keras_performer_gradients = gradients
        return outputs[0] if is_one else tuple(outputs)

    return call
