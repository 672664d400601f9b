"""`SpatialGatingUnit` beside its formula in NumPy."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from keras_performer.zoo import SpatialGatingUnit
from tests.layers.costs import largest_tensor
from tests.layers.inputs import normal
from tests.layers.twins import assert_is_twin, randomize

MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 1, 1]], bool)
# TensorFlow knows the root of two in its gelu to 8 digits only
TOLERANCE = 1e-7


def built(max_length=7, intermediate_dim=6, dtype="float64", dim=5, **options):
    layer = SpatialGatingUnit(max_length, intermediate_dim, dtype=dtype, **options)
    layer.build((None, None, dim))
    randomize(layer)
    return layer


def twin_of(layer):
    def twin(weights, x, mask=None):
        """Token by token, Z1 * (W norm(Z2) + b) between two dense layers."""
        z = x @ weights["expand/kernel"] + weights["expand/bias"]
        z *= scipy.special.ndtr(z)  # gelu
        z1, z2 = z[..., : z.shape[-1] // 2], z[..., z.shape[-1] // 2 :]
        mean, variance = z2.mean(-1, keepdims=True), z2.var(-1, keepdims=True)
        z2 = (z2 - mean) / np.sqrt(variance + layer.norm.epsilon)
        z2 = z2 * weights["norm/gamma"] + weights["norm/beta"]
        y = np.zeros_like(x)
        for row, t in np.ndindex(x.shape[:2]):
            if mask is not None and not mask[row, t]:
                continue
            gate = np.full(z2.shape[-1], weights["spatial_bias"][t])
            for s in range(t + 1 if layer.causal else x.shape[1]):
                if mask is None or mask[row, s]:
                    gate = gate + weights["spatial_kernel"][t, s] * z2[row, s]
            gated = z1[row, t] * gate
            y[row, t] = gated @ weights["contract/kernel"] + weights["contract/bias"]
        return y

    return twin


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 5, 7])
def test_it_is_the_formula_and_so_are_its_gradients(length, causal):
    layer = built(causal=causal)
    assert_is_twin(layer, twin_of(layer), [normal((2, length, 5))], TOLERANCE)


@pytest.mark.parametrize("causal", [False, True])
def test_masked_tokens_count_as_zeros(causal):
    layer, x = built(causal=causal), normal((2, 7, 5))
    assert_is_twin(layer, twin_of(layer), [x], TOLERANCE, mask=MASK)
    huge = np.where(MASK[..., None], x, 1e4)
    np.testing.assert_array_equal(layer(huge, mask=MASK), layer(x, mask=MASK))


@pytest.mark.parametrize("causal", [False, True])
def test_padding_to_the_right_is_none(causal):
    layer, x, mask = built(causal=causal), normal((1, 7, 5)), MASK[:1]
    padded = layer(x, mask=mask)
    np.testing.assert_allclose(padded[:, :5], layer(x[:, :5]), atol=1e-12)
    np.testing.assert_array_equal(padded[:, 5:], np.zeros((1, 2, 5)))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_huge_later_token_does_not_move_the_past(dtype):
    layer, x = built(9, dtype=dtype, causal=True), normal((2, 9, 5))
    for first in range(1, 9):
        later = x.copy()
        later[:, first:] *= 1e4
        np.testing.assert_array_equal(
            tf.cast(layer(later)[:, :first], "float32"),
            tf.cast(layer(x)[:, :first], "float32"),
        )
    assert np.abs(tf.cast(layer(later) - layer(x), "float32")).max() > 1


def test_at_first_it_is_a_network_for_each_token_by_itself():
    layer = SpatialGatingUnit(50, 6, dtype="float64")
    x = normal((2, 50, 5))
    layer.build(x.shape)
    alone = layer.contract(layer.expand(x)[..., :3])
    difference = np.abs(layer(x) - alone).max()
    assert 0 < difference < 1e-3 * np.abs(alone).max()
    kernel = layer.spatial_kernel.numpy()
    assert 0 < np.abs(kernel).max() <= 1e-3 / 50
    np.testing.assert_array_equal(layer.spatial_bias, np.ones(50))


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_adds_up_in_float32(dtype):
    """A sum of ones goes up to 75,000, more than a float16 can be, and down to 2."""
    layer = built(1000, 2, dtype=dtype, dim=1)
    kernel = np.full((1000, 1000), 150.0, "float32")
    kernel[:, 500:] = -150.0
    kernel[:, 0] = 152.0
    names = {w.path.split("/", 1)[1]: w for w in layer.weights}
    values = {
        "expand/kernel": 0.0,
        "expand/bias": 10.0,  # both halves, whatever the token
        "norm/beta": 1.0,
        "contract/kernel": 1.0,
        "contract/bias": 0.0,
        "spatial_kernel": kernel,
        "spatial_bias": 0.0,
    }
    for name, value in values.items():
        names[name].assign(np.broadcast_to(value, names[name].shape))
    y = layer(np.ones((1, 1000, 1), "float32"))
    assert y.dtype == dtype.split("_")[1]
    np.testing.assert_array_equal(tf.cast(y, "float32"), np.full((1, 1000, 1), 20.0))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_unknown_shapes_and_xla(causal):
    layer = built(12, dtype="float32", causal=causal)
    right = built(12, causal=causal)
    spec = [tf.TensorSpec((None, None, 5)), tf.TensorSpec((None, None), "bool")]
    graph = tf.function(layer.__call__, input_signature=spec)
    xla = tf.function(layer.__call__, jit_compile=True)
    for batch, length in ((2, 7), (1, 1), (3, 12)):
        x, mask = normal((batch, length, 5)), normal((batch, length)) < 0.5
        for function in (layer, graph, xla):
            found = function(tf.constant(x), tf.constant(mask))
            np.testing.assert_allclose(found, right(x, mask=mask), atol=1e-4)


def test_longer_sequences_are_refused():
    layer = SpatialGatingUnit(max_length=6, intermediate_dim=4)
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
        tf.errors.InvalidArgumentError, match="make_SpatialGatingUnit_w"
    ):
        xla(tf.ones((2, 7, 5)))


def test_its_matrix_alone_is_quadratic():
    layers = [SpatialGatingUnit(n, 8) for n in (256, 1024)]
    shapes = [(4, n, 8) for n in (256, 1024)]
    assert [*map(largest_tensor, layers, shapes)] == [256**2, 1024**2]
    # no square for each row of the batch
    assert largest_tensor(SpatialGatingUnit(64, 64), (16, 64, 8)) == 16 * 64 * 64
    assert SpatialGatingUnit.cost == "L^2"


@pytest.mark.parametrize("name", ["max_length", "intermediate_dim"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, None])
def test_sizes_that_are_none_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive int"):
        SpatialGatingUnit(**{"max_length": 4, "intermediate_dim": 4, name: value})


def test_an_odd_number_of_channels_is_refused():
    with pytest.raises(
        ValueError, match="intermediate_dim must be even.*intermediate_dim=7"
    ):
        SpatialGatingUnit(4, 7)
