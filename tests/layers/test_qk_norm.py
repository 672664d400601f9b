"""`AttentionLayer(qk_norm=True)`: logits that are a scale times a cosine."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention
from tests.layers.inputs import normal, value_and_gradients

SCALES = np.array([3.0, 7.0])
TAYLOR = {"feature_map": "taylor", "num_random_features": None}


def made(kind=PerformerAttention, scales=SCALES, **options):
    """A layer of 4 heads of size 6 with biases, two query heads to a key head."""
    own = {PerformerAttention: dict(num_random_features=8)}
    common = {"qk_norm": True, "num_key_value_heads": 2, "seed": 1, "causal": True}
    bias = keras.initializers.RandomNormal(stddev=0.5, seed=6)
    options = {**common, **own.get(kind, {}), **options}
    layer = kind(4, 6, bias_initializer=bias, **options)
    layer.build((2, None, 8))
    if layer.qk_norm and scales is not None:
        layer.query_key_norm.log_scale.assign(np.log(scales))
    return layer


KINDS = [
    pytest.param(ExactAttention, {}, id="exact"),
    pytest.param(LocalAttention, {"sliding_window": 3}, id="local"),
    pytest.param(PerformerAttention, {}, id="features"),
    pytest.param(PerformerAttention, TAYLOR, id="taylor"),
    pytest.param(PerformerAttention, {"exact_window": 3, **TAYLOR}, id="window"),
]


def test_features_estimate_it():
    """Many features come five times nearer than the same weight for every key does."""
    layer = made(feature_map="favor+", num_random_features=4096, scales=[0.5, 1.5])
    exact = made(ExactAttention, scales=[0.5, 1.5])
    exact.set_weights(layer.get_weights()[:9])
    x = normal((2, 11, 8), 1)
    _, estimated = layer(x, return_attention_scores=True)
    _, scores = exact(x, return_attention_scores=True)
    alike = np.tri(11) / np.arange(1, 12)[:, None]
    error, control = (np.linalg.norm(z - scores) for z in (estimated, alike))
    assert error < 0.2 * control


@pytest.mark.parametrize(("kind", "options"), [KINDS[0], KINDS[2], KINDS[4]])
def test_lengths_of_queries_and_keys_do_not_matter(kind, options):
    layer, x = made(kind, **options), normal((2, 11, 8), 1)
    expected = layer(x).numpy()
    for dense, factor in ((layer.query_dense, 7.0), (layer.key_dense, 0.2)):
        for weight in dense.weights:
            weight.assign(factor * weight)
    np.testing.assert_allclose(layer(x), expected, atol=3e-6)
    layer.query_key_norm.log_scale.assign_add([1.0, 1.0])
    assert np.abs(layer(x) - expected).max() > 1e-2


@pytest.mark.parametrize(
    ("kind", "options", "scale"),
    [
        (ExactAttention, {}, 16),
        (PerformerAttention, {}, 4),
        (PerformerAttention, {"feature_map": "relu"}, 4),
        (PerformerAttention, TAYLOR, 16),
    ],
)
def test_where_it_starts(kind, options, scale):
    layer = made(kind, scales=None, **options)
    np.testing.assert_allclose(
        np.exp(layer.query_key_norm.log_scale), [scale, scale], rtol=1e-6
    )


def test_tokens_without_a_query_or_key_give_finite_gradients():
    layer = made(use_bias=False)
    x = normal((2, 11, 8), 1) * (np.arange(11) % 3 > 0)[:, None]
    output, gradients = value_and_gradients(layer, x)
    assert all(np.isfinite(z).all() for z in (output, *gradients))


# twice to four times the spacing of numbers: products round otherwise on other machines
@pytest.mark.parametrize(
    ("options", "dtype", "tolerance"),
    [
        ({}, "mixed_bfloat16", 2e-2),
        ({"exact_window": 3, **TAYLOR}, "mixed_float16", 4e-3),
    ],
)
def test_half_precision_is_near_to_float32(options, dtype, tolerance):
    layer, half = made(**options), made(dtype=dtype, **options)
    half.set_weights(layer.get_weights())
    assert half.query_key_norm.log_scale.dtype == "float32"
    x = normal((2, 11, 8), 1)
    expected, output = layer(x), half(x)
    assert output.dtype == dtype.removeprefix("mixed_")
    error = np.linalg.norm(tf.cast(output, "float32") - expected)
    assert error < tolerance * np.linalg.norm(expected)


def test_files_of_attention_without_it_leave_the_scale(tmp_path):
    """`MultiHeadAttention` has none, for example."""
    inputs = keras.Input((None, 8))
    layers = (
        keras.layers.MultiHeadAttention(4, 6, name="attention"),
        ExactAttention(4, 6, qk_norm=True, name="attention"),
    )
    models = [keras.Model(inputs, layer(inputs, inputs)) for layer in layers]
    models[0].save_weights(tmp_path / "plain.weights.h5")
    layers[1].query_key_norm.log_scale.assign([1.0, 2.0, 3.0, 4.0])
    models[1].load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_array_equal(
        layers[1].query_key_norm.log_scale, [1.0, 2.0, 3.0, 4.0]
    )
    for name in ("query_dense", "key_dense"):
        given, own = (getattr(layer, name).kernel for layer in layers)
        np.testing.assert_array_equal(given, own)
