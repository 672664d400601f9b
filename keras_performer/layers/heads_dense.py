"""The dense layers of `keras.layers.MultiHeadAttention`."""

import math
import string

import keras
import tensorflow as tf

from keras_performer.ops.shapes import size


def heads_dense(name, input_shape, num_summed, output_shape, use_bias, **options):
    """A built `HeadsDense`.

    Args:
        name: str, name of the layer.
        input_shape: tuple, shape of its input.
        num_summed: int, how many axes at the end of the input are summed over.
        output_shape: tuple of the sizes that replace them.
        use_bias: bool, whether to add a bias of shape `output_shape`.
        **options: further arguments of `keras.layers.EinsumDense`.
    """
    letters = iter(string.ascii_letters)
    kept = "".join(next(letters) for _ in input_shape[:-num_summed])
    summed = "".join(next(letters) for _ in range(num_summed))
    made = "".join(next(letters) for _ in output_shape)
    for key in ("kernel_initializer", "bias_initializer"):
        # a copy: one initializer object gives the same values each time it is used
        initializer = options[key]
        options[key] = initializer.__class__.from_config(initializer.get_config())
    dense = HeadsDense(
        f"{kept}{summed},{summed}{made}->{kept}{made}",
        output_shape=(*(None,) * (len(kept) - 1), *output_shape),
        bias_axes=made if use_bias else None,
        name=name,
        **options,
    )
    dense.build(input_shape)
    return dense


@keras.saving.register_keras_serializable(package="keras_performer")
class HeadsDense(keras.layers.EinsumDense):
    """`EinsumDense` over the last axes of its input, as a product of two matrices.

    `EinsumDense` itself is a batched product: the same speed for many tokens, but a
    third of it for one token. And the gradient of its bias adds up in float32, as that
    of `keras.layers.Dense` does not in graphs on CPUs: a bfloat16 sum stops growing.
    """

    def call(self, inputs, training=None):
        made = [dim for dim in self.partial_output_shape if dim is not None]
        kernel = tf.convert_to_tensor(self.kernel)
        num_kept = len(inputs.shape) - (len(kernel.shape) - len(made))
        matrix = tf.reshape(kernel, (-1, math.prod(made)))
        inputs = tf.cast(inputs, matrix.dtype)  # Keras casts no integers
        output = _product(tf.reshape(inputs, (-1, matrix.shape[0])), matrix)
        if self.bias is not None:
            bias = tf.convert_to_tensor(self.bias)
            output = _add_bias(output, tf.reshape(bias, (-1,)))
        kept = [size(inputs, axis) for axis in range(num_kept)]
        return self.activation(tf.reshape(output, (*kept, *made)))

    def quantize(self, mode=None, type_check=True, **options):
        # Keras' own check refuses every subclass
        return super().quantize(mode, type_check=False, **options)


def _add_bias(rows, bias):
    if rows.dtype.size > 2:
        return tf.nn.bias_add(rows, bias)

    @tf.custom_gradient
    def add(rows, bias):
        def gradient(drows):
            total = tf.reduce_sum(tf.cast(drows, tf.float32), 0)
            return drows, tf.cast(total, bias.dtype)

        return tf.nn.bias_add(rows, bias), gradient

    return add(rows, bias)


def _product(rows, matrix):
    if rows.shape[0] != 1:
        return tf.matmul(rows, matrix)
    # For one row XLA reads the matrix column by column on CPUs, ten times slower.
    return tf.matmul(tf.pad(rows, [[0, 1], [0, 0]]), matrix)[:1]
