"""The report beside attention matrices computed in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from keras_performer import approximation_report, ops
from keras_performer.conversion.approximation import _advice as advice_on

LENGTH, DIM, HEADS, KEY_DIM, WINDOW = 23, 6, 3, 5, 4


def softmax(logits, seen):
    weights = np.where(seen, np.exp(logits - logits.max(-1, keepdims=True)), 0)
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)


def projected(layer, name, x):
    dense = getattr(layer, f"{name}_dense")
    kernel, bias = (np.asarray(w, np.float64) for w in dense.get_weights())
    return np.einsum("btd,dnh->bnth", x, kernel) + bias[:, np.newaxis]


def expected(layer, x, seen, rows):
    """A dict of numbers of each head.

    Args:
        layer: a `MultiHeadAttention`, built.
        x: array `(B, T, dim)`.
        seen: bool array `(B, T, T)`.
        rows: bool array `(B, T)`, the queries that count.
    """
    q, k, v = (projected(layer, name, x) for name in ("query", "key", "value"))
    logits = np.einsum("bnth,bnsh->bnts", q, k) / np.sqrt(KEY_DIM)
    seen = np.broadcast_to(seen[:, np.newaxis], logits.shape)
    distance = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH)))
    near = distance < WINDOW
    weights = softmax(logits, seen)
    exact = weights @ v

    def error(estimate):
        difference, size = ((z**2).sum(-1) for z in (estimate - exact, exact))
        return [
            np.sqrt(difference[:, n][rows].sum() / size[:, n][rows].sum())
            for n in range(HEADS)
        ]

    def mean(values):
        return [values[:, n][rows].mean() for n in range(HEADS)]

    def window_needed(head):
        return next(
            window
            for window in range(1, LENGTH + 1)
            if np.where(distance < window, weights, 0).sum(-1)[:, head][rows].mean()
            >= 0.9
        )

    number = np.maximum(seen.sum(-1), 1)
    sums = q[..., np.newaxis, :] + k[:, :, np.newaxis]
    squares = (sums**2).sum(-1) / np.sqrt(KEY_DIM)
    center = np.where(seen, logits, 0).sum(-1) / number
    spread = np.where(seen, (logits - center[..., np.newaxis]) ** 2, 0).sum(-1)
    return {
        "phi": mean(np.where(seen, squares, 0).sum(-1) / number),
        "spread": mean(np.sqrt(spread / number)),
        "near_share": mean(np.where(near, weights, 0).sum(-1)),
        "window_needed": [window_needed(head) for head in range(HEADS)],
        "mean": error((seen / number[..., np.newaxis]) @ v),
        "window": error(softmax(logits, seen & near) @ v),
    }


def model_of(layer, **options):
    start = keras.Input((LENGTH, DIM))
    mask = keras.Input((LENGTH,), dtype="bool")
    x = layer(start, start, query_mask=mask, value_mask=mask, **options)
    return keras.Model([start, mask], keras.layers.Dense(2)(x))


@pytest.fixture
def inputs():
    random = np.random.default_rng(0)
    x = random.normal(size=(2, LENGTH, DIM)).astype("float32")
    return x, np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 6]])


@pytest.mark.parametrize("causal", [False, True])
def test_numbers_of_keras_attention(inputs, causal):
    keras.utils.set_random_seed(1)
    layer = keras.layers.MultiHeadAttention(
        HEADS, KEY_DIM, bias_initializer="normal", name="attention"
    )
    model = model_of(layer, use_causal_mask=causal)
    report = approximation_report(
        model, list(inputs), num_rows=99, exact_window=WINDOW, seed=0
    )
    x, mask = inputs
    seen = mask[:, np.newaxis] & np.tri(LENGTH, dtype=bool) if causal else mask[:, None]
    seen = np.broadcast_to(seen, (2, LENGTH, LENGTH))
    for name, numbers in expected(layer, x.astype("float64"), seen, mask).items():
        found = [getattr(head, name) for head in report.heads]
        np.testing.assert_allclose(found, numbers, rtol=1e-4, err_msg=name)


def test_errors_of_features_are_those_of_the_matrix_that_they_imply(inputs):
    # with grouped heads, and the norm, features and gains that a Performer has itself
    x = inputs[0]
    layer = keras_performer.PerformerAttention(
        4, KEY_DIM, num_key_value_heads=2, causal=True, exact_window=WINDOW,
        qk_norm=True, num_random_features=32, seed=3, name="own",
    )  # fmt: skip
    layer(x)
    layer.assign_log_gain([1.0, -1.0, 0.5, 0.0])
    layer.query_key_norm.log_scale.assign([-0.5, 0.5])
    q, k, v = (
        layer.project(name, tf.constant(x)) for name in ("query", "key", "value")
    )
    exact = ops.exact_attention(q, k, v, causal=True)
    v = tf.repeat(v, 2, axis=2)
    options = {"features": {}, "both": dict(exact_window=WINDOW)}
    options["both"]["log_gain"] = layer.log_gain
    report = approximation_report(layer, x, num_rows=99)
    for name, window in options.items():
        scores = ops.attention_scores(
            q, k, layer.feature_kernel(), None, True, **window
        )
        difference = tf.einsum("bnts,bsnv->btnv", scores, v) - exact
        squares = [tf.reduce_sum(z**2, (0, 1, 3)) for z in (difference, exact)]
        found = [getattr(head, name) for head in report.heads]
        np.testing.assert_allclose(found, tf.sqrt(squares[0] / squares[1]), rtol=1e-4)


def test_rotary_positions_count(inputs):
    options = dict(rotary=True, use_bias=False, name="own")
    layer = keras_performer.layers.ExactAttention(2, 4, **options)
    places = np.arange(LENGTH)[np.newaxis] * 50
    layer(inputs[0])
    start, positions = keras.Input((LENGTH, DIM)), keras.Input((LENGTH,), dtype="int32")
    model = keras.Model([start, positions], layer(start, positions=positions))
    places = np.repeat(places, 2, 0).astype("int32")
    report = approximation_report(model, [inputs[0], places], num_rows=99, seed=0)
    q, k = (
        ops.rotary_embedding(getattr(layer, f"{name}_dense")(inputs[0]), places)
        for name in ("query", "key")
    )
    logits = np.einsum("btnh,bsnh->nbts", q, k) / 2
    spread = logits.std(-1).mean((1, 2))
    np.testing.assert_allclose([head.spread for head in report.heads], spread, 1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_segments_are_looked_at_apart(inputs, causal):
    options = dict(causal=causal, num_random_features=16, exact_window=3, seed=0)
    layer = keras_performer.PerformerAttention(2, 4, name="own", **options)
    x = inputs[0][:1, :20]
    layer(x)
    start, ids = keras.Input((20, DIM)), keras.Input((20,), dtype="int32")
    model = keras.Model([start, ids], layer(start, segment_ids=ids))
    packed = approximation_report(
        model, [x, np.repeat([[0, 1]], 10, 1)], num_rows=99
    ).heads
    apart = approximation_report(layer, np.reshape(x, (2, 10, DIM)), num_rows=99).heads
    np.testing.assert_allclose(
        [head[2:9] for head in packed], [head[2:9] for head in apart], rtol=1e-4
    )


def test_some_rows_of_some_batches():
    layer = keras_performer.layers.ExactAttention(2, 4, causal=True)
    data = np.random.default_rng(0).normal(size=(6, 50, 4)).astype("float32")
    pairs = tf.data.Dataset.from_tensor_slices((data, np.zeros(6))).batch(2)
    whole = approximation_report(layer, data[:4], num_rows=7, seed=0)
    batches = approximation_report(layer, pairs, num_rows=7, max_batches=2, seed=0)
    np.testing.assert_allclose(
        [head[2:6] for head in batches.heads], [head[2:6] for head in whole.heads], 1e-5
    )

    class Pairs(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return data[2 * index : 2 * index + 2], np.zeros(2)

    again = approximation_report(layer, Pairs(), num_rows=7, max_batches=2, seed=0)
    assert [head[2:6] for head in again.heads] == [x[2:6] for x in batches.heads]
    other = approximation_report(layer, data[:4], num_rows=8, seed=0)
    assert other.heads[0].phi != whole.heads[0].phi


@pytest.mark.parametrize("window", [None, WINDOW])
def test_twice_the_features_are_those_of_another_report(inputs, window):
    x = inputs[0]
    model = keras.Sequential([keras_performer.layers.ExactAttention(HEADS, KEY_DIM)])
    options = dict(exact_window=window, seed=3)
    few, many = (
        approximation_report(model, x, num_random_features=number, **options).heads
        for number in (16, 32)
    )
    name = "features" if window is None else "both"
    found, expected = [head.doubled for head in few], [getattr(h, name) for h in many]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(found, [getattr(head, name) for head in few], rtol=1e-2)
    taylor = approximation_report(model, x, feature_map="taylor", **options).heads
    assert all(np.isnan(head.doubled) for head in taylor)
    # the number of a layer does not go with a map that has no random features
    of_number = keras_performer.PerformerAttention(
        HEADS, KEY_DIM, num_random_features=8
    )
    of_number.build(x.shape)
    of_number.set_weights(model.get_weights() + of_number.get_weights()[8:])
    same = approximation_report(of_number, x, feature_map="taylor", **options).heads
    np.testing.assert_array_equal([h[2:-1] for h in same], [h[2:-1] for h in taylor])


def test_more_features_are_advised_where_they_help():
    errors = dict(mean=1.0, window=0.9, features=0.6, both=0.4)
    names = {
        0.39: "window and features",
        0.3: "window and features; more features",
    }
    for doubled, advice in names.items():
        assert advice_on({**errors, "doubled": doubled}) == advice
    lost = dict(mean=1.0, window=np.nan, features=0.6, both=np.nan)
    assert advice_on({**lost, "doubled": 0.45}) == "more features"
    for doubled in 0.55, np.nan:
        assert advice_on({**lost, "doubled": doubled}) == "keep it exact"
    window = dict(mean=1.0, window=0.4, features=2.0, both=0.39, doubled=0.2)
    assert advice_on(window) == "local attention"


def test_sharp_heads_are_to_stay_exact_and_flat_ones_not():
    layer = keras.layers.MultiHeadAttention(2, 4, use_bias=False, name="attention")
    x = np.random.default_rng(0).normal(size=(1, 200, 8)).astype("float32")
    layer(x, x)
    kernel = np.zeros((8, 2, 4), "float32")
    kernel[:4, 0], kernel[:4, 1] = 4 * np.eye(4), 0.2 * np.eye(4)
    layer.query_dense.kernel.assign(kernel)
    layer.key_dense.kernel.assign(kernel)
    start = keras.Input((None, 8))
    model = keras.Model(start, layer(start, start))
    sharp, flat = approximation_report(model, x, exact_window=16, seed=0).heads
    assert sharp.advice == "keep it exact" and sharp.phi > 16
    assert flat.advice == "features alone" and flat.phi < 2
    assert flat.features < 0.5 * min(flat.mean, flat.window)


def test_what_cannot_be_looked_at_is_said():
    layers = [
        keras.layers.MultiHeadAttention(1, 4, sliding_window=3, name="near"),
        keras.layers.MultiHeadAttention(1, 4, name="seen"),
    ]
    x = start = keras.Input((9, 4))
    for layer in layers:
        x = layer(x, x)
    model = keras.Model(start, x)
    data = np.ones((1, 9, 4), "float32")
    report = approximation_report(model, data, seed=0)
    assert [head.layer for head in report.heads] == ["seen"]
    assert "sliding_window=3" in report.left_out["near"]
    assert "near: not looked at" in str(report) and " - " in str(report)
    with pytest.raises(ValueError, match="must have a layer of softmax attention"):
        approximation_report(keras.layers.Dense(2), data)
    with pytest.raises(ValueError, match=r"Functional.*sliding_window=3"):
        approximation_report(keras.Model(start, layers[0](start, start)), data)


def test_a_head_of_nothing_has_no_errors():
    layer = keras_performer.layers.ExactAttention(2, 4, use_bias=False)
    x = np.random.default_rng(0).normal(size=(1, 9, 4)).astype("float32")
    layer(x)
    kernel = layer.value_dense.kernel.numpy()
    kernel[:, 1] = 0
    layer.value_dense.kernel.assign(kernel)
    some, nothing = approximation_report(layer, x, seed=0).heads
    assert some.features > 0 and np.isnan(nothing.features)
    assert nothing.advice == "nothing to attend to"


class Mean(keras_performer.layers.AttentionLayer):
    projections = ("value",)
    supports_causal = False

    def attend(self, query, key, value, visible, state=None, training=None):
        mean = tf.reduce_mean(value, 1, keepdims=True)
        return tf.repeat(mean, value.shape[1], axis=1), None


def test_other_mechanisms_and_states_are_left_out():
    x = np.random.default_rng(0).normal(size=(1, 9, 4)).astype("float32")
    layers = Mean(1, 4), keras_performer.layers.ExactAttention(1, 4, name="exact")
    report = approximation_report(keras.Sequential([keras.Input((9, 4)), *layers]), x)
    assert [head.layer for head in report.heads] == [layers[1].path]

    class Steps(keras.Model):
        def __init__(self):
            super().__init__()
            self.attention = keras_performer.PerformerAttention(1, 4, causal=True)

        def call(self, x):
            _, state = self.attention(x[:, :5], return_state=True)
            return self.attention(x[:, 5:], state=state)

    with pytest.raises(ValueError, match="called with a state"):
        approximation_report(Steps(), x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windw": 3}, "did you mean exact_window. Received: windw"),
        ({"causal": True}, "Received: causal"),
        ({"num_rows": 0}, "num_rows must be a positive int"),
        ({"max_batches": -1}, "max_batches must be a positive int"),
    ],
)
def test_other_options_are_errors(options, message):
    layer = keras_performer.layers.ExactAttention(1, 4)
    with pytest.raises(ValueError, match=message):
        approximation_report(layer, np.ones((1, 9, 4), "float32"), **options)


def test_a_mask_that_differs_by_query_is_said():
    layer = keras.layers.MultiHeadAttention(1, 4, name="attention")
    start = keras.Input((9, 4))
    model = keras.Model(start, layer(start, start, attention_mask=np.tri(9)[None]))
    with pytest.raises(ValueError, match="must not differ by query"):
        approximation_report(model, np.ones((1, 9, 4), "float32"))


def test_the_picture_has_a_line_for_each_estimate(tmp_path):
    layer = keras_performer.layers.ExactAttention(2, 4)
    data = np.random.default_rng(0).normal(size=(1, 30, 4)).astype("float32")
    report = approximation_report(layer, data, exact_window=4, seed=0)
    (axes,) = report.plot().axes
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert list(drawn) == ["mean", "window", "features", "both", "doubled"]
    np.testing.assert_array_equal(drawn["both"], [head.both for head in report.heads])
