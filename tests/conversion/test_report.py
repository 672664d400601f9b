"""Reports and implied attention, compared with attention matrices from NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, approximation_report, ops
from keras_performer.conversion import implied_attention
from keras_performer.conversion.approximation import _advice as advice_on
from keras_performer.conversion.cached import CachedExactAttention
from keras_performer.layers import ExactAttention
from keras_performer.zoo import SynthesizerAttention
from tests.layers.twins import heads, softmax, weights_of

LENGTH, DIM, HEADS, KEY_DIM, WINDOW = 23, 6, 3, 5, 4
X = np.random.default_rng(0).normal(size=(2, LENGTH, DIM)).astype("float32")
MASK = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 6]])
DISTANCE = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))


def projected(layer):
    """Returns query, key and value `(B, N, T, H)`, and logits `(B, N, T, T)`."""
    q, k, v = (
        np.moveaxis(heads(weights_of(layer), name, X), 2, 1)
        for name in ("query", "key", "value")
    )
    return q, k, v, np.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(KEY_DIM)


def numbers_of(layer, seen):
    """Returns a dict of numbers for each head, over the queries in `MASK`.

    Args:
        layer: a `MultiHeadAttention`, built.
        seen: bool array that broadcasts to `(B, N, T, T)`.
    """
    q, k, v, logits = projected(layer)
    seen = np.broadcast_to(seen, logits.shape)
    weights = softmax(logits, seen)
    exact = weights @ v

    def error(estimate):
        difference, size = ((z**2).sum(-1) for z in (estimate - exact, exact))
        return [
            np.sqrt(difference[:, n][MASK].sum() / size[:, n][MASK].sum())
            for n in range(HEADS)
        ]

    def mean(values):
        return np.array([values[:, n][MASK].mean() for n in range(HEADS)])

    within = [mean((weights * (DISTANCE < w)).sum(-1)) for w in range(1, LENGTH + 1)]
    number = np.maximum(seen.sum(-1), 1)
    sums = q[..., np.newaxis, :] + k[:, :, np.newaxis]
    squares = (sums**2).sum(-1) / np.sqrt(KEY_DIM)
    center = np.where(seen, logits, 0).sum(-1) / number
    spread = np.where(seen, (logits - center[..., np.newaxis]) ** 2, 0).sum(-1)
    near = seen & (DISTANCE < WINDOW)
    return {
        "phi": mean(np.where(seen, squares, 0).sum(-1) / number),
        "spread": mean(np.sqrt(spread / number)),
        "near_share": within[WINDOW - 1],
        "window_needed": 1 + (np.array(within) >= 0.9).argmax(0),
        "mean": error(softmax(np.zeros_like(logits), seen) @ v),
        "window": error(softmax(logits, near) @ v),
    }


def masked_model(causal, masks="tokens"):
    keras.utils.set_random_seed(1)
    cached = masks == "combined"
    layer = (CachedExactAttention if cached else keras.layers.MultiHeadAttention)(
        HEADS, KEY_DIM, bias_initializer="normal", name="attention"
    )
    start, mask = keras.Input((LENGTH, DIM)), keras.Input((LENGTH,), dtype="bool")
    call = {} if cached else dict(use_causal_mask=causal)
    if masks == "tokens":
        call |= dict(query_mask=mask, value_mask=mask)
    else:
        call["attention_mask"] = keras.ops.expand_dims(mask, 1)
    if cached and causal:
        call["attention_mask"] &= np.tri(LENGTH, dtype=bool)
    x = layer(start, start, **call)
    seen = MASK[:, None, None] & (np.tri(LENGTH, dtype=bool) if causal else True)
    return layer, keras.Model([start, mask], keras.layers.Dense(2)(x)), seen


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masks", ["tokens", "keys", "combined"])
def test_numbers_of_keras_attention(causal, masks):
    layer, model, seen = masked_model(causal, masks)
    report = approximation_report(
        model, [X, MASK], num_rows=99, exact_window=WINDOW, seed=0
    )
    for name, numbers in numbers_of(layer, seen).items():
        found = [getattr(head, name) for head in report.heads]
        np.testing.assert_allclose(found, numbers, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [None, [0, 5, -1]])
def test_implied_weights_of_taylor_features(causal, rows):
    layer, model, seen = masked_model(causal)
    (found,) = implied_attention(model, [X, MASK], rows=rows, feature_map="taylor")
    *_, logits = projected(layer)
    chosen = np.arange(LENGTH)[rows or slice(None)]
    np.testing.assert_array_equal(found.rows, chosen)
    expected = {"exact": logits, "implied": np.log(1 + logits + logits**2 / 2)}
    for name, logs in expected.items():
        weights = softmax(logs, seen)[:, :, chosen]
        np.testing.assert_allclose(getattr(found, name), weights, atol=2e-6)


def test_errors_of_features_are_those_of_the_matrix_that_they_imply():
    # with grouped heads, and the layer's own norm, features and gains
    layer = PerformerAttention(
        4, KEY_DIM, num_key_value_heads=2, causal=True, exact_window=WINDOW,
        qk_norm=True, num_random_features=32, seed=3, name="own",
    )  # fmt: skip
    layer(X)
    layer.assign_log_gain([1.0, -1.0, 0.5, 0.0])
    layer.query_key_norm.log_scale.assign([-0.5, 0.5])
    q, k, v = (
        layer.project(name, tf.constant(X)) for name in ("query", "key", "value")
    )
    exact = ops.exact_attention(q, k, v, causal=True)
    given, causal = (q, k, v, layer.feature_kernel()), ops.Visibility(causal=True)
    features, _ = ops.causal_attention(*given)
    both, _ = ops.windowed_attention(*given, WINDOW, layer.log_gain, causal)
    report = approximation_report(layer, X, num_rows=99)
    for name, attended in {"features": features, "both": both}.items():
        difference = attended - exact
        squares = [tf.reduce_sum(z**2, (0, 1, 3)) for z in (difference, exact)]
        found = [getattr(head, name) for head in report.heads]
        np.testing.assert_allclose(found, tf.sqrt(squares[0] / squares[1]), rtol=1e-4)


def test_implied_weights_of_a_window_are_exact_but_for_the_normalizer():
    layer = PerformerAttention(HEADS, KEY_DIM, name="own")
    (found,) = implied_attention(layer, X[:1], exact_window=4, seed=0)
    ratio = np.where(DISTANCE < 4, found.implied / found.exact, np.nan)
    least, most = np.nanmin(ratio, -1), np.nanmax(ratio, -1)
    np.testing.assert_allclose(least, most, rtol=1e-4)
    assert np.nanmax(np.abs(least - 1)) > 1e-3  # the features are not exact


def test_rotary_positions_count():
    layer = ExactAttention(2, 4, rotary=True, use_bias=False, name="own")
    start, positions = keras.Input((LENGTH, DIM)), keras.Input((LENGTH,), dtype="int32")
    model = keras.Model([start, positions], layer(start, positions=positions))
    places = np.tile(np.arange(LENGTH, dtype="int32") * 50, (2, 1))
    report = approximation_report(model, [X, places], num_rows=99, seed=0)
    q, k = (
        ops.rotary_embedding(getattr(layer, f"{name}_dense")(X), places)
        for name in ("query", "key")
    )
    logits = np.einsum("btnh,bsnh->nbts", q, k) / 2
    spread = logits.std(-1).mean((1, 2))
    np.testing.assert_allclose([head.spread for head in report.heads], spread, 1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_segments_are_looked_at_apart(causal):
    options = dict(causal=causal, num_random_features=16, exact_window=3, seed=0)
    layer = PerformerAttention(2, 4, name="own", **options)
    x = X[:1, :20]
    layer(x)
    start, ids = keras.Input((20, DIM)), keras.Input((20,), dtype="int32")
    model = keras.Model([start, ids], layer(start, segment_ids=ids))
    segments = np.repeat([[0, 1]], 10, 1)
    packed = approximation_report(model, [x, segments], num_rows=99).heads
    apart = approximation_report(layer, np.reshape(x, (2, 10, DIM)), num_rows=99).heads
    np.testing.assert_allclose(
        [head[2:9] for head in packed], [head[2:9] for head in apart], rtol=1e-4
    )


def test_some_rows_of_some_batches():
    layer = ExactAttention(2, 4, causal=True)
    data = np.random.default_rng(0).normal(size=(6, 50, 4)).astype("float32")
    pairs = tf.data.Dataset.from_tensor_slices((data, np.zeros(6))).batch(2)
    whole = approximation_report(layer, data[:4], num_rows=7, seed=0)
    batches = approximation_report(layer, pairs, num_rows=7, max_batches=2, seed=0)
    np.testing.assert_allclose(
        [head[2:6] for head in batches.heads], [head[2:6] for head in whole.heads], 1e-5
    )
    other = approximation_report(layer, data[:4], num_rows=8, seed=0)
    assert other.heads[0].phi != whole.heads[0].phi


@pytest.mark.parametrize("window", [None, WINDOW])
def test_twice_the_features_are_those_of_another_report(window):
    model = keras.Sequential([ExactAttention(HEADS, KEY_DIM)])
    options = dict(exact_window=window, seed=3)
    few, many = (
        approximation_report(model, X, num_random_features=number, **options).heads
        for number in (16, 32)
    )
    name = "features" if window is None else "both"
    found, expected = [head.doubled for head in few], [getattr(h, name) for h in many]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(found, [getattr(head, name) for head in few], rtol=1e-2)
    taylor = approximation_report(model, X, feature_map="taylor", **options).heads
    assert all(np.isnan(head.doubled) for head in taylor)


NAN = float("nan")
WITH_WINDOW = dict(mean=1.0, window=0.9, features=0.6, both=0.4)
WITHOUT = dict(mean=1.0, window=NAN, features=0.6, both=NAN)


@pytest.mark.parametrize(
    "advice, errors",
    [
        ("window and features", dict(WITH_WINDOW, doubled=0.39)),
        ("window and features; more features", dict(WITH_WINDOW, doubled=0.3)),
        ("more features", dict(WITHOUT, doubled=0.45)),
        ("keep it exact", dict(WITHOUT, doubled=0.55)),
        ("keep it exact", dict(WITHOUT, doubled=NAN)),
        ("features alone", dict(WITHOUT, features=0.4, doubled=0.39)),
        ("features alone", dict(WITH_WINDOW, features=0.45, doubled=NAN)),
        ("local attention", dict(WITH_WINDOW, window=0.4, both=0.39, doubled=0.2)),
        ("nothing to attend to", dict.fromkeys([*WITH_WINDOW, "doubled"], NAN)),
    ],
)
def test_the_advice_is_the_simplest_of_what_is_nearly_as_good(advice, errors):
    assert advice_on(errors) == advice


def test_what_cannot_be_looked_at_is_said():
    near = keras.layers.MultiHeadAttention(1, 4, sliding_window=3, name="near")
    seen = ExactAttention(2, 4, use_bias=False, name="seen")
    x = start = keras.Input((9, 4))
    model = keras.Model(
        start, seen(SynthesizerAttention(1, 4, max_length=9)(near(x, x)))
    )
    kernel = seen.value_dense.kernel.numpy()
    kernel[:, 1] = 0
    seen.value_dense.kernel.assign(kernel)
    report = approximation_report(model, X[:, :9, :4], seed=0)
    assert [head.layer for head in report.heads] == ["seen", "seen"]
    # a head whose values are 0 has no errors
    assert report.heads[0].features > 0 and np.isnan(report.heads[1].features)
    assert report.heads[1].advice == "nothing to attend to"
    assert "sliding_window=3" in report.left_out["near"]
    assert "near: not measured" in str(report) and " - " in str(report)


def test_estimates_that_overflow_are_infinitely_wrong():
    model = keras.Sequential([ExactAttention(1, KEY_DIM)])
    (head,) = approximation_report(model, 1e12 * X, feature_map="taylor").heads
    assert head.features == np.inf and head.advice == "keep it exact"


class Steps(keras.Model):
    def __init__(self):
        super().__init__()
        self.attention = PerformerAttention(1, 4, causal=True)

    def call(self, x):
        _, state = self.attention(x[:, :5], return_state=True)
        return self.attention(x[:, 5:], state=state)


def masked_by_query():
    layer = keras.layers.MultiHeadAttention(1, 4, name="attention")
    start = keras.Input((LENGTH, DIM))
    mask = np.tri(LENGTH)[np.newaxis]
    return keras.Model(start, layer(start, start, attention_mask=mask))


@pytest.mark.parametrize(
    ("report", "options", "message"),
    [
        (approximation_report, {"windw": 3}, "did you mean exact_window. Rec.* windw"),
        (approximation_report, {"causal": True}, "Received: causal"),
        (approximation_report, {"num_rows": 0}, "num_rows must be a positive int"),
        (approximation_report, {"max_batches": -1}, "max_batches must be a positive"),
        (implied_attention, {"rows": [0, 23]}, "^rows must .* 23 queries. .* with 23"),
        (implied_attention, {"causal": True}, "causal is no option of implied_att"),
    ],
)
def test_other_options_are_errors(report, options, message):
    with pytest.raises(ValueError, match=message):
        report(ExactAttention(1, 4), X, **options)


def test_rows_must_be_queries_of_every_layer():
    start = keras.Input((LENGTH, DIM))
    x = keras.layers.MultiHeadAttention(1, 4)(start, start)[:, :9]
    model = keras.Model(start, keras.layers.MultiHeadAttention(1, 4)(x, x))
    assert len(implied_attention(model, X, rows=[0, 8, -9], seed=0)) == 2
    with pytest.raises(ValueError, match="^rows must .* 9 queries. .* rows with 20"):
        implied_attention(model, X, rows=[0, 20])


def test_models_without_softmax_attention_are_refused():
    relu = PerformerAttention(1, 5, feature_map="relu")
    for report, model, message in (
        (approximation_report, Steps(), "Steps.*called with a state"),
        (approximation_report, masked_by_query(), "must not differ by query"),
        (approximation_report, keras.layers.Dense(2), "have a layer of softmax atten"),
        (implied_attention, relu, "have a layer of softmax attention"),
        (implied_attention, "model.keras", "model must be a Keras model or layer"),
    ):
        with pytest.raises(ValueError, match=message):
            report(model, X)


def test_pictures_are_of_each_estimate_and_of_each_call():
    layer = keras.layers.MultiHeadAttention(2, KEY_DIM, name="shared")
    start = keras.Input((None, DIM))
    x = layer(start, start)
    model = keras.Model(start, layer(x, x))
    report = approximation_report(model, X, exact_window=4, seed=0)
    (axes,) = report.plot().axes
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(drawn) == ["mean", "window", "features", "both", "doubled"]
    np.testing.assert_array_equal(drawn["both"], [head.both for head in report.heads])
    first, second = implied_attention(model, X[:, :9], seed=0)
    assert first.layer == second.layer == "shared"
    assert np.abs(first.exact - second.exact).max() > 1e-3
    for axes, name in zip(second.plot().axes, ("exact", "implied")):
        drawn = axes.images[0].get_array() ** 2
        np.testing.assert_allclose(drawn, getattr(second, name)[0, 0], atol=1e-6)
