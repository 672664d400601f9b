"""Inputs, layers and measures that the tests of layers share."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from keras_performer import PerformerAttention, PerformerLM
from keras_performer.layers import choice

# Biases that are not 0, as they are by default.
BIAS = keras.initializers.RandomNormal(stddev=0.5, seed=6)


def normal(shape, seed=0, std=1.0, dtype="float32"):
    return (std * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def small_layer(**options):
    """Returns a layer of 3 heads of size 4, with 14 features and nonzero biases."""
    defaults = dict(num_heads=3, key_dim=4, num_random_features=14, seed=5)
    return PerformerAttention(**{**defaults, "bias_initializer": BIAS, **options})


def output_and_gradients(function, inputs, weights=None, **call):
    """Returns the output, and gradients of a random linear function of it.

    Args:
        function: a layer, or a function of tensors and `call`.
        inputs: list of arrays; floats get a gradient.
        weights: list of variables. Defaults to the layer's trainable weights.
        **call: further arguments of the function.
    """
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    floats = [x for x in inputs if x.dtype.is_floating]
    weights = function.trainable_weights if weights is None else weights
    with tf.GradientTape() as tape:
        tape.watch(floats)
        output = function(*inputs, **call)
        cotangent = normal(output.shape, 4, dtype="float64")
        total = tf.reduce_sum(tf.cast(output, "float64") * cotangent)
    sources = [*floats, *(weight.value for weight in weights)]
    # zeros, as some attention ignores queries; a promise checks gradients of weights
    kept = {"unconnected_gradients": tf.UnconnectedGradients.ZERO}
    return output, tape.gradient(total, sources, **kept)


def in_pieces(layer, x, *cuts, state=None, **call):
    """Returns the output of consecutive calls on pieces of x, and the last state.

    Args:
        layer: an attention, block or model.
        x: array `(B, length, ...)`.
        *cuts: indices at which pieces after the first one start.
        state: the state before x. Defaults to the layer's first one.
        **call: arrays `(B, length)` that are cut like x.
    """
    if state is None:
        state = layer.get_initial_state(len(x), packed="segment_ids" in call)
    parts = []
    for start, end in itertools.pairwise((0, *cuts, x.shape[1])):
        here = {name: array[:, start:end] for name, array in call.items()}
        part, state = layer(x[:, start:end], state=state, return_state=True, **here)
        parts.append(part)
    return tf.concat(parts, 1), state


def plain_options(attention="performer"):
    """Returns options that turn off the window and the gate of a `PerformerLM`."""
    return choice.fitting({"exact_window": None, "forget_gate": False}, attention)


def language_model(
    vocabulary_size=11,
    max_length=16,
    num_layers=1,
    num_heads=2,
    hidden_dim=8,
    **options,
):
    """Returns a small model, without window and gate unless `options` set them."""
    plain = plain_options(options.get("attention", "performer"))
    return PerformerLM(
        vocabulary_size,
        max_length=max_length,
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_dim=hidden_dim,
        **{**plain, **options},
    )
