"""Layers that are alike take turns in one copy, which is compiled once."""

import json

import tensorflow as tf


class SharedCopies:
    """Makes a `SharedCopy` for each kind of layer, and finds it again."""

    def __init__(self):
        self._of_kinds: dict = {}

    def of(self, layer, weights):
        """The `SharedCopy` of a built layer, on which some of its weights train."""
        indices = _indices(layer, weights)
        config = {**layer.get_config(), "name": None, "seed": None}
        shapes = [(tuple(x.shape), str(x.dtype)) for x in layer.weights]
        build = layer.get_build_config()
        kind = type(layer), json.dumps([config, build, shapes, indices], default=str)
        if kind not in self._of_kinds:
            self._of_kinds[kind] = SharedCopy(_copy(layer), indices)
        return self._of_kinds[kind]


class SharedCopy:
    """A layer that stands for others of its kind, one after the other.

    Args:
        layer: a built `PerformerAttention`, whose weights are overwritten.
        indices: list of ints, which of its weights train.
    """

    def __init__(self, layer, indices):
        self._layer = layer
        self._trained = [layer.weights[index] for index in indices]
        self._compiled_sums = tf.function(self._sums, autograph=False)
        self._compiled_gradients = tf.function(self._gradients, autograph=False)

    def sums(self, layer, *call):
        """Sums over tokens of squared differences, squares of what is wanted, and 1.

        Args:
            layer: the layer whose weights count.
            *call: its `Inputs`, positions as for `layer.project`, what it is to return,
                and which tokens are there, bool `(B, T)`, or `None` for all.
        """
        self._load(layer)
        return self._compiled_sums(*call)

    def gradients(self, layer, *call):
        """Gradients of the squared differences over squared targets."""
        self._load(layer)
        return self._compiled_gradients(*call)

    def _load(self, layer):
        for own, given in zip(self._layer.weights, layer.weights, strict=True):
            own.assign(given)

    def _gradients(self, *call):
        with tf.GradientTape() as tape:
            differences, wanted, _ = tf.unstack(self._sums(*call))
            loss = tf.math.divide_no_nan(differences, wanted)
        variables = [weight.value for weight in self._trained]
        # a window that sees all has no use for the gains
        return tape.gradient(loss, variables, unconnected_gradients="zero")

    def _sums(self, inputs, positions, wanted, there):
        output = tf.cast(self._output(inputs, positions), tf.float32)
        wanted = tf.ensure_shape(tf.cast(wanted, tf.float32), output.shape)
        axis = range(len(inputs.query.shape) - 1, len(output.shape))
        squares = [tf.reduce_sum(x**2, axis) for x in (output - wanted, wanted)]
        counted = tf.stack([*squares, tf.ones_like(squares[0])])
        if there is not None:
            counted = tf.where(there, counted, 0.0)
        return tf.reduce_sum(counted, range(1, len(counted.shape)))

    def _output(self, inputs, positions):
        """Output of the layer without dropout, compiled as in training."""
        layer = self._layer
        query = layer.project("query", inputs.query, positions)
        key = layer.project("key", inputs.key, positions)
        value = layer.project("value", inputs.value)
        decays = layer.decays(inputs)
        attended, _ = layer.attend(
            query, key, value, inputs.visible, training=True, **decays
        )
        return layer.write(attended, inputs.query_mask)


def _indices(layer, weights):
    wanted = {id(weight) for weight in weights}
    return [i for i, weight in enumerate(layer.weights) if id(weight) in wanted]


def _copy(layer):
    copy = type(layer).from_config(layer.get_config())
    copy.build_from_config(layer.get_build_config())
    return copy
