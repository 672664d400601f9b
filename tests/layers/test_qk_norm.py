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


def expected_of_numpy(layer, x, near, far):
    """Causal attention with weights `near` and `far` of a scale times cosines."""
    wq, bq, wk, bk, wv, bv, wo, bo = (
        np.asarray(w, "float64") for w in layer.get_weights()[:8]
    )
    q, k, v = (
        np.einsum("btd,dnh->btnh", x, w) + b for w, b in ((wq, bq), (wk, bk), (wv, bv))
    )
    k, v = np.repeat(k, 2, 2), np.repeat(v, 2, 2)
    lengths = (np.linalg.norm(z, axis=-1).transpose(0, 2, 1) for z in (q, k))
    cosines = np.einsum("btnh,bsnh->bnts", q, k) / np.einsum("bnt,bns->bnts", *lengths)
    logits = np.repeat(SCALES, 2)[:, None, None] * cosines
    distance = np.subtract.outer(np.arange(x.shape[1]), np.arange(x.shape[1]))
    weights = np.where(distance < 3, near(logits), far(logits)) * (distance >= 0)
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("btnv,nvd->btd", np.einsum("bnts,bsnv->btnv", weights, v), wo) + bo


def taylor(t):
    return 1 + t + t**2 / 2


@pytest.mark.parametrize(
    ("kind", "options", "near", "far"),
    [
        (ExactAttention, {}, np.exp, np.exp),
        (LocalAttention, {"sliding_window": 3}, np.exp, np.zeros_like),
        (PerformerAttention, TAYLOR, taylor, taylor),
        (PerformerAttention, {"exact_window": 3, **TAYLOR}, np.exp, taylor),
    ],
)
def test_it_is_that_of_numpy(kind, options, near, far):
    x = normal((2, 11, 8), 1)
    layer = made(kind, **options)
    np.testing.assert_allclose(
        layer(x), expected_of_numpy(layer, x, near, far), atol=3e-6
    )


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


@pytest.mark.parametrize(("kind", "options"), [KINDS[0], KINDS[2], KINDS[4]])
def test_gradients_are_differences(kind, options):
    layer = made(kind, dtype="float64", **options)
    x = normal((2, 11, 8), 1, dtype="float64")
    _, gradients = value_and_gradients(layer, x)
    index = [w.name for w in layer.trainable_weights].index("log_scale")
    values = []
    for step in (1e-2, -1e-2):
        layer.query_key_norm.log_scale.assign(np.log(SCALES) + [step, 0])
        output = layer(x).numpy() * normal((1, 1, 8), seed=9)
        values.append(np.sum(output**2))
    difference = (values[0] - values[1]) / 2e-2
    np.testing.assert_allclose(gradients[1 + index][0], difference, rtol=1e-3)


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
    """As of `MultiHeadAttention`, which has none."""
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
