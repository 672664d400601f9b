"""Implied attention beside the features themselves, and exact beside NumPy."""

import keras
import numpy as np
import pytest

import keras_performer
from keras_performer import feature_maps
from keras_performer.conversion import implied_attention

LENGTH, DIM, HEADS, KEY_DIM = 23, 6, 3, 5


def projected(layer, name, x):
    kernel, bias = getattr(layer, f"{name}_dense").get_weights()
    return np.einsum("btd,dnh->bnth", x, kernel.astype("float64")) + bias[:, None]


def normalized(weights, seen):
    weights = np.where(seen, weights, 0)
    return weights / weights.sum(-1, keepdims=True)


@pytest.fixture
def case():
    keras.utils.set_random_seed(0)
    layer = keras.layers.MultiHeadAttention(
        HEADS, KEY_DIM, bias_initializer="normal", name="attention"
    )
    start = keras.Input((LENGTH, DIM))
    mask = keras.Input((LENGTH,), dtype="bool")
    models = [
        keras.Model(
            [start, mask], layer(start, start, value_mask=mask, use_causal_mask=causal)
        )
        for causal in (False, True)
    ]
    x = np.random.default_rng(0).normal(size=(2, LENGTH, DIM)).astype("float32")
    there = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 6]])
    return layer, models, (x, there)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [None, [0, 5, -1]])
def test_weights_of_taylor_features(case, causal, rows):
    layer, models, (x, there) = case
    (found,) = implied_attention(
        models[causal],
        [x, there],
        rows=rows,
        feature_map="taylor",
        num_random_features=None,
    )
    q, k = (projected(layer, name, x) for name in ("query", "key"))
    logits = np.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(KEY_DIM)
    seen = there[:, None, None] & (np.tri(LENGTH, dtype=bool) if causal else True)
    chosen = np.arange(LENGTH)[rows or slice(None)]
    np.testing.assert_array_equal(found.rows, chosen)
    expected = {"exact": np.exp(logits), "implied": 1 + logits + logits**2 / 2}
    for name, weights in expected.items():
        weights = normalized(weights, seen)[:, :, chosen]
        np.testing.assert_allclose(getattr(found, name), weights, atol=2e-6)


def test_weights_of_a_window_are_exact_but_for_the_normalizer():
    layer = keras_performer.PerformerAttention(HEADS, KEY_DIM, name="own")
    x = np.random.default_rng(1).normal(size=(1, LENGTH, DIM)).astype("float32")
    layer(x)
    (found,) = implied_attention(layer, x, exact_window=4, seed=0)
    distance = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    ratio = np.where(distance < 4, found.implied / found.exact, np.nan)
    least, most = np.nanmin(ratio, -1), np.nanmax(ratio, -1)
    np.testing.assert_allclose(least, most, rtol=1e-4)
    assert np.nanmax(np.abs(least - 1)) > 1e-3  # the features are not exact


def test_each_call_has_its_own_weights_and_picture(tmp_path):
    layer = keras.layers.MultiHeadAttention(1, KEY_DIM, name="shared")
    start = keras.Input((None, DIM))
    x = layer(start, start)
    model = keras.Model(start, layer(x, x))
    data = np.random.default_rng(2).normal(size=(1, 9, DIM)).astype("float32")
    first, second = implied_attention(model, data, seed=0)
    assert first.layer == second.layer == "shared"
    assert np.abs(first.exact - second.exact).max() > 1e-3
    figure = second.plot()
    for axes, name in zip(figure.axes, ("exact", "implied")):
        drawn = axes.images[0].get_array() ** 2
        np.testing.assert_allclose(drawn, getattr(second, name)[0, 0], atol=1e-6)


def test_errors():
    layer = keras_performer.PerformerAttention(1, KEY_DIM)
    x = np.zeros((1, 9, DIM), "float32")
    layer(x)
    with pytest.raises(ValueError, match="of the 9 queries. Received: rows with 9"):
        implied_attention(layer, x, rows=[0, 9])
    with pytest.raises(ValueError, match="causal is no option of implied_attention"):
        implied_attention(layer, x, causal=True)
    generalized = keras_performer.PerformerAttention(1, 5, feature_map="relu")
    generalized(x)
    with pytest.raises(ValueError, match="softmax"):
        implied_attention(generalized, x, feature_map=feature_maps.get("relu"))
