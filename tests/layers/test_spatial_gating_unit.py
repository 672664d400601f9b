"""`SpatialGatingUnit` beside its formula in NumPy."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from keras_performer.zoo import SpatialGatingUnit
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


@pytest.mark.parametrize("length, causal", [(1, False), (5, True), (7, False)])
def test_it_is_the_formula_and_so_are_its_gradients(length, causal):
    layer = built(causal=causal)
    assert_is_twin(layer, twin_of(layer), [normal((2, length, 5))], TOLERANCE)


@pytest.mark.parametrize("causal", [False, True])
def test_masked_tokens_count_as_zeros(causal):
    layer, x = built(causal=causal), normal((2, 7, 5))
    assert_is_twin(layer, twin_of(layer), [x], TOLERANCE, mask=MASK)
    huge = np.where(MASK[..., None], x, 1e4)
    np.testing.assert_array_equal(layer(huge, mask=MASK), layer(x, mask=MASK))


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
