"""`TokenMixing` beside its formula in NumPy."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from keras_performer.zoo import TokenMixing
from tests.layers.costs import largest_tensor
from tests.layers.inputs import normal
from tests.layers.twins import assert_is_twin, randomize

MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1, 1]], bool)
# TensorFlow knows the root of two in its gelu to 8 digits only
TOLERANCE = 1e-7


def built(max_length=7, intermediate_dim=11, dtype="float64", dim=5):
    layer = TokenMixing(max_length, intermediate_dim, dtype=dtype)
    layer.build((None, None, dim))
    randomize(layer)
    return layer


def twin(weights, x, mask=None):
    """Channel by channel, W2 gelu(W1 x) over the first tokens."""
    x = x if mask is None else x * mask[..., None]
    length, y = x.shape[1], np.zeros_like(x)
    for row, channel in np.ndindex(x.shape[0], x.shape[2]):
        hidden = weights["expand_kernel"][:length].T @ x[row, :, channel]
        hidden += weights["expand_bias"]
        hidden *= scipy.special.ndtr(hidden)  # gelu
        mixed = weights["contract_kernel"].T @ hidden + weights["contract_bias"]
        y[row, :, channel] = mixed[:length]
    return y if mask is None else y * mask[..., None]


@pytest.mark.parametrize("length", [1, 5, 7])
def test_it_is_the_formula_and_so_are_its_gradients(length):
    assert_is_twin(built(), twin, [normal((2, length, 5))], TOLERANCE)


def test_masked_tokens_count_as_zeros():
    layer, x = built(), normal((2, 7, 5))
    assert_is_twin(layer, twin, [x], TOLERANCE, mask=MASK)
    huge = np.where(MASK[..., None], x, 1e4)
    np.testing.assert_array_equal(layer(huge, mask=MASK), layer(x, mask=MASK))


def test_padding_to_the_right_is_none():
    layer, x, mask = built(), normal((1, 7, 5)), MASK[:1]
    padded = layer(x, mask=mask)
    np.testing.assert_allclose(padded[:, :5], layer(x[:, :5]), atol=1e-12)
    np.testing.assert_array_equal(padded[:, 5:], np.zeros((1, 2, 5)))


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_adds_up_in_float32(dtype):
    layer = TokenMixing(5000, 1, dtype=dtype)
    layer.build((None, None, 1))
    kernel = np.ones((5000, 1), "float32")
    kernel[2500:] = -1
    layer.set_weights([kernel, np.zeros(1), np.ones((1, 5000)), np.zeros(5000)])
    x = 30 * np.ones((1, 5000, 1), "float32")  # sums up to 75,000 on the way
    x[0, 0] = 33.0
    y = layer(x)
    assert y.dtype == dtype.split("_")[1]
    # gelu(3), rounded once
    np.testing.assert_allclose(tf.cast(y, "float32"), 2.996, rtol=5e-3)


@pytest.mark.slow
def test_unknown_shapes_and_xla():
    layer = built(12, dtype="float32")
    weights = [w.numpy().astype("float64") for w in layer.weights]
    weights = dict(zip([w.name for w in layer.weights], weights))
    spec = [tf.TensorSpec((None, None, 5)), tf.TensorSpec((None, None), "bool")]
    graph = tf.function(layer.__call__, input_signature=spec)
    xla = tf.function(layer.__call__, jit_compile=True)
    for batch, length in ((2, 7), (1, 1), (3, 12)):
        x, mask = normal((batch, length, 5)), normal((batch, length)) < 0.5
        right = twin(weights, x.astype("float64"), mask)
        for function in (layer, graph, xla):
            found = function(tf.constant(x), tf.constant(mask))
            np.testing.assert_allclose(found, right, atol=1e-4)


def test_longer_sequences_are_refused():
    layer = TokenMixing(max_length=6, intermediate_dim=3)
    message = "make it with the max_length of the longest.*longer than max_length=6"
    with pytest.raises(ValueError, match=message):
        layer(tf.ones((2, 7, 5)))
    spec = [tf.TensorSpec((None, None, 5))]
    graph = tf.function(layer.__call__, input_signature=spec)
    assert graph(tf.ones((2, 6, 5))).shape == (2, 6, 5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        graph(tf.ones((2, 7, 5)))
    xla = tf.function(layer.__call__, input_signature=spec, jit_compile=True)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="TokenMixing_with_a_max_l"
    ):
        xla(tf.ones((2, 7, 5)))


def test_no_tensor_grows_faster_than_the_length():
    small, large = (largest_tensor(TokenMixing(n, 32), (1, n, 8)) for n in (256, 1024))
    assert small == 256 * 32 and large == 4 * small
    assert TokenMixing.cost == "L"


@pytest.mark.parametrize("name", ["max_length", "intermediate_dim"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, None])
def test_sizes_that_are_none_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive int"):
        TokenMixing(**{"max_length": 4, "intermediate_dim": 4, name: value})


def test_it_cannot_hide_later_tokens():
    assert not TokenMixing.supports_causal
    with pytest.raises(ValueError, match="TokenMixing cannot hide later tokens"):
        TokenMixing(4, 4, causal=True)
