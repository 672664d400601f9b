"""Keras' tests of its attention layers, applied to ours.

Exact attention gives the outputs of Keras' `MultiHeadAttention` and
`GroupQueryAttention`. This file leaves out options that our layers lack (attention over
other axes, `use_gate`, `sliding_window`, flash attention) and overriding
`_compute_attention`.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention
from tests.contract import relative_error
from tests.layers.inputs import BIAS, normal, output_and_gradients

KINDS = {
    "keras": keras.layers.MultiHeadAttention,
    "exact": ExactAttention,
    "performer": functools.partial(PerformerAttention, num_random_features=6),
}


def multi_head(kind, num_heads=3, key_dim=4, **options):
    """Returns a layer of one of `KINDS`, with nonzero biases."""
    return KINDS[kind](num_heads, key_dim, bias_initializer=BIAS, **options)


def grouped_query(kind, num_key_value_heads=2, **options):
    """Returns layers as `multi_head`, but like `keras.layers.GroupQueryAttention`."""
    if kind == "keras":
        heads = 6, num_key_value_heads
        options["bias_initializer"] = BIAS
        return keras.layers.GroupQueryAttention(4, *heads, **options)
    return multi_head(kind, 6, num_key_value_heads=num_key_value_heads, **options)


def results(layer, inputs, **call):
    """Returns outputs, with and without scores, and gradients by their names."""

    def outputs(*inputs):
        both = layer(*inputs, return_attention_scores=True, **call)
        parts = *both, layer(*inputs, **call)
        return tf.concat([tf.reshape(x, (-1,)) for x in parts], 0)

    weights = layer.trainable_weights
    found, gradients = output_and_gradients(outputs, inputs, weights)
    names = [f"d input {i}" for i in range(len(inputs))]
    names += [weight.path.split("/", 1)[1] for weight in weights]
    assert len(set(names)) == len(gradients)
    return {"outputs": found, **dict(zip(names, gradients))}


B, T, S = 2, 5, 7

DROPOUT = dict(dropout=0.4, seed=3)  # equal seeds drop equal weights
# shapes of query, value and key; options; arguments of the call
CASES = {
    "a key of its own": ([(B, T, 6), (B, S, 9), (B, S, 8)], {}, {}),
    "sizes": ([(B, T, 6), (B, S, 9)], dict(value_dim=2, output_shape=(3, 2)), {}),
    "one head, no bias": ([(B, T, 6)] * 2, dict(num_heads=1, use_bias=False), {}),
    "one token": ([(B, 1, 6), (B, 1, 6)], {}, {}),
    "causal": ([(B, T, 6)] * 2, {}, dict(use_causal_mask=True)),
    "dropout": ([(B, T, 6), (B, S, 9)], DROPOUT, dict(training=True)),
    "dropout, masked": (
        [(B, T, 6)] * 2,
        DROPOUT,
        dict(training=True, key_mask=np.arange(T) < [[5], [3]]),
    ),
    "dropout of two of six": (
        [(B, T, 8)] * 2,
        DROPOUT,
        dict(training=True, use_causal_mask=True),
    ),
    "one of six": ([(B, T, 8), (B, S, 8)], dict(num_key_value_heads=1), {}),
    "grouped, a key of its own": ([(B, T, 8), (B, S, 8), (B, S, 3)], {}, {}),
}
GROUPED = {"one of six", "grouped, a key of its own", "dropout of two of six"}


@pytest.mark.parametrize("case", CASES)
# Keras' layer warns about sequences of one token
@pytest.mark.filterwarnings("ignore:(?s).*softmax over axis 3 of a tensor of shape")
def test_numbers_gradients_and_names_are_those_of_keras(case):
    shapes, options, call = CASES[case]
    make = grouped_query if case in GROUPED else multi_head
    expected, layer = make("keras", **options), make("exact", **options)
    for each in expected, layer:
        each.build(*shapes)
    layer.set_weights(expected.get_weights())

    def described(layer):
        return [(w.path.split("/", 1)[1], w.shape, w.dtype) for w in layer.weights]

    assert described(layer) == described(expected)
    # seeds of dropout
    seeds = [len(one.variables) - len(one.weights) for one in (layer, expected)]
    assert seeds[0] == seeds[1]
    inputs = [normal(shape, seed) for seed, shape in enumerate(shapes)]
    wanted, got = results(expected, inputs, **call), results(layer, inputs, **call)
    assert list(got) == list(wanted)
    for name, right in wanted.items():
        # some gradients are 0: the key bias adds the same to all scores of a query,
        # and a single token always has the weight 1
        error = np.linalg.norm(got[name] - right)
        assert error < 1e-5 * max(np.linalg.norm(right), 1), name
    for name in ("outputs", "value/kernel"):
        assert np.linalg.norm(wanted[name]) > 0.5


@pytest.mark.parametrize("empty", [(), []])
def test_an_empty_output_shape_is_that_of_the_query(empty):
    layer = multi_head("performer", output_shape=empty)
    shapes = [7, 4, 8], [7, 2, 8]  # lists, as in files
    assert layer.compute_output_shape(*shapes) == (7, 4, 8)
    assert layer(*map(normal, shapes)).shape == (7, 4, 8)


def test_one_initializer_gives_every_kernel_its_own_values():
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    layer = multi_head("performer", 4, 4, kernel_initializer=initializer)
    layer.build((2, 4, 16), (2, 4, 16))
    kernels = [w.numpy().ravel() for w in layer.trainable_weights if w.name == "kernel"]
    assert len(kernels) == 4 and np.std(kernels, 1).min() > 0.01
    assert np.abs(np.corrcoef(kernels) - np.eye(4)).max() < 0.5


def test_a_map_of_policies_reaches_the_dense_layers():
    policies = keras.dtype_policies.DTypePolicyMap()
    for name in ("query", "value"):
        policies[f"mine/{name}"] = keras.dtype_policies.get("int8_from_float32")
    layer = multi_head("exact", use_bias=False, dtype=policies, name="mine")
    shapes = [(1, 2, 6)] * 2
    layer.build(*shapes)
    dense = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    dtypes = [dense.kernel.dtype for dense in dense]
    assert dtypes == ["int8", "float32", "int8", "float32"]
    assert np.isfinite(layer(*map(normal, shapes))).all()


PAIR = [normal((B, T, 6)), normal((B, S, 6), 1)]


def test_keras_loads_our_weights_where_layers_are_attributes():
    class OneAttribute(keras.Model):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def call(self, inputs):
            return self.attention(*inputs)

    ours, other = (OneAttribute(multi_head(name)) for name in ("exact", "keras"))
    assert relative_error(other(PAIR), ours(PAIR)) > 0.05
    ours.save_weights("ours.weights.h5")
    other.load_weights("ours.weights.h5")
    assert relative_error(other(PAIR), ours(PAIR)) < 1e-5
