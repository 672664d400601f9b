"""Training of one layer of linear attention to give the outputs of exact attention."""

import math
import time

import keras
import numpy as np
import tensorflow as tf

# Of the gradients of a layer, together: far tokens of sharp heads have large ones.
CLIP_NORM = 1.0


class LayerMatch:
    """A layer that is trained to return what another layer returned.

    All its weights train but those of values and output, and none that is frozen.

    Args:
        layer: a built `PerformerAttention`.
        copies: the `SharedCopies` of all layers that train.
    """

    def __init__(self, layer, copies):
        kept = {
            id(x) for x in (*layer.value_dense.weights, *layer.output_dense.weights)
        }
        self.layer = layer
        self.weights = [x for x in layer.trainable_weights if id(x) not in kept]
        self.seconds = 0.0
        self._first = [x.numpy() for x in self.weights]
        self._copy = copies.of(layer, self.weights)
        self._optimizer = keras.optimizers.Adam()
        self._optimizer.build(self.weights)
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
        call = inputs, positions, wanted, there
        self._sums += self._copy.sums(self.layer, *call)

    @property
    def num_tokens(self):
        """Number of tokens that were measured, padding left out."""
        return int(self._sums[2])

    def error(self):
        """The relative error of all that was measured; nan if nothing is wanted."""
        differences, wanted, _ = self._sums
        return math.sqrt(differences / wanted) if wanted else math.nan

    def train(self, inputs, positions, wanted, learning_rate):
        """Takes one step of Adam, for one call as in `measure`."""
        start = time.perf_counter()
        self._optimizer.learning_rate.assign(learning_rate)
        call = inputs, positions, wanted, _tokens_that_are_there(inputs)
        gradients = self._copy.gradients(self.layer, *call)
        # in one dtype: gains are float32 where kernels are bfloat16
        gradients = [tf.cast(gradient, tf.float32) for gradient in gradients]
        gradients, _ = tf.clip_by_global_norm(gradients, CLIP_NORM)
        pairs = zip(gradients, self.weights)
        cast = [tf.cast(gradient, weight.dtype) for gradient, weight in pairs]
        self._optimizer.apply(cast, self.weights)
        self.seconds += time.perf_counter() - start

    def give_up(self):
        """Gives the layer the weights that it had at first."""
        for weight, value in zip(self.weights, self._first):
            weight.assign(value)


def _tokens_that_are_there(inputs):
    """Bool `(B, T)`, false for padding: what no query sees; `None` if all are there."""
    hidden = inputs.visible.key_mask
    if inputs.query_mask is None and inputs.query is inputs.key and hidden is not None:
        return hidden if hidden.shape == inputs.query.shape[:-1] else None
    return inputs.query_mask
