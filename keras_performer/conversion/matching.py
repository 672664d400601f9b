"""How one layer of linear attention is trained to say what exact attention says."""

import math
import time

import keras
import numpy as np
import tensorflow as tf

# Of the gradients of a layer, together: far tokens of sharp heads have large ones.
CLIP_NORM = 1.0


class Match:
    """A layer that is trained to return what another layer returned.

    All its weights train but those of values and output, and none that is frozen.

    Args:
        layer: a built `PerformerAttention`.
    """

    def __init__(self, layer):
        kept = {
            id(x) for x in (*layer.value_dense.weights, *layer.output_dense.weights)
        }
        self.layer = layer
        self.weights = [x for x in layer.trainable_weights if id(x) not in kept]
        self.seconds = 0.0
        self._first = [x.numpy() for x in self.weights]
        self._optimizer = keras.optimizers.Adam(global_clipnorm=CLIP_NORM)
        self._optimizer.build(self.weights)
        self._compiled_sums = tf.function(self._sums_of_call, autograph=False)
        self._compiled_step = tf.function(self._step_of_call, autograph=False)
        self.forget()

    def forget(self):
        """Begins to measure anew."""
        self._sums = np.zeros(3)

    def measure(self, inputs, positions, wanted):
        """Adds what one call says to the error.

        Args:
            inputs: the `Inputs` of the layer.
            positions: as for `layer.project`.
            wanted: tensor, what the layer is to return.
        """
        there = _tokens_that_are_there(inputs)
        self._sums += self._compiled_sums(inputs, positions, wanted, there)

    @property
    def num_tokens(self):
        """How many tokens were measured, padding left out."""
        return int(self._sums[2])

    def error(self):
        """The relative error of all that was measured; nan if nothing is wanted."""
        differences, wanted, _ = self._sums
        return math.sqrt(differences / wanted) if wanted else math.nan

    def train(self, inputs, positions, wanted, learning_rate):
        """Takes one step of Adam, for one call as in `measure`."""
        start = time.perf_counter()
        self._optimizer.learning_rate.assign(learning_rate)
        there = _tokens_that_are_there(inputs)
        self._compiled_step(inputs, positions, wanted, there)
        self.seconds += time.perf_counter() - start

    def give_up(self):
        """Gives the layer the weights that it had at first."""
        for weight, value in zip(self.weights, self._first):
            weight.assign(value)

    def _step_of_call(self, *call):
        with tf.GradientTape() as tape:
            differences, wanted, _ = tf.unstack(self._sums_of_call(*call))
            loss = tf.math.divide_no_nan(differences, wanted)
        variables = [weight.value for weight in self.weights]
        # a window that sees all has no use for the gains
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
        self._optimizer.apply(gradients, self.weights)

    def _sums_of_call(self, inputs, positions, wanted, there):
        """Sums over tokens of squared differences, squares of what is wanted, and 1."""
        output = tf.cast(self._output(inputs, positions), tf.float32)
        wanted = tf.ensure_shape(tf.cast(wanted, tf.float32), output.shape)
        axis = range(len(inputs.query.shape) - 1, len(output.shape))
        squares = [tf.reduce_sum(x**2, axis) for x in (output - wanted, wanted)]
        counted = tf.stack([*squares, tf.ones_like(squares[0])])
        if there is not None:
            counted = tf.where(there, counted, 0.0)
        return tf.reduce_sum(counted, range(1, len(counted.shape)))

    def _output(self, inputs, positions):
        """What the layer returns without dropout, compiled as in training."""
        layer = self.layer
        query = layer.project("query", inputs.query, positions)
        key = layer.project("key", inputs.key, positions)
        value = layer.project("value", inputs.value)
        attended, _ = layer.attend(query, key, value, inputs.visible, training=True)
        return layer.write(attended, inputs.query, inputs.query_mask)


def _tokens_that_are_there(inputs):
    """Bool `(B, T)`, false for padding: what no query sees; `None` if all are there."""
    hidden = inputs.visible.key_mask
    if inputs.query_mask is None and inputs.query is inputs.key and hidden is not None:
        return hidden if hidden.shape == inputs.query.shape[:-1] else None
    return inputs.query_mask
