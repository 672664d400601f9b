"""`AttentionLayer(rotary=...)`: rotary positions in every attention."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention, ops
from keras_performer.layers import ExactAttention, LocalAttention
from tests.contract import relative_error
from tests.layers.inputs import normal

GRID = (2, 3, 2)
PLACES = np.stack(np.unravel_index(np.arange(12), GRID), -1)[None]


def made(kind=PerformerAttention, **options):
    """A layer of 4 heads of size 12 with biases, two query heads to a key head."""
    own = {
        PerformerAttention: dict(num_random_features=8),
        LocalAttention: dict(sliding_window=5),
        ExactAttention: {},
    }
    common = {"rotary": True, "num_key_value_heads": 2, "seed": 1}
    bias = keras.initializers.RandomNormal(stddev=0.5, seed=6)
    layer = kind(4, 12, bias_initializer=bias, **{**common, **own[kind], **options})
    layer.build((2, None, 8))
    return layer


KINDS = [
    pytest.param(ExactAttention, {}, id="exact"),
    pytest.param(LocalAttention, {}, id="local"),
    pytest.param(PerformerAttention, {}, id="features"),
    pytest.param(PerformerAttention, {"exact_window": 3}, id="window"),
]
RELATIVE = [
    *KINDS[:2],
    pytest.param(
        PerformerAttention,
        {"feature_map": "taylor", "num_random_features": None},
        id="taylor",
    ),
]


# -- Softmax attention with rotary positions, in NumPy.


def rotation(position, size):
    """The matrix R of RoFormer's equation 15, with halves paired, not neighbours."""
    matrix, half = np.zeros((size, size)), size // 2
    for i in range(half):
        angle = float(position) * 10000.0 ** (-2 * i / size)
        cos, sin = np.cos(angle), np.sin(angle)
        matrix[i, i] = matrix[i + half, i + half] = cos
        matrix[i, i + half], matrix[i + half, i] = -sin, sin
    return matrix


def turned(heads, places):
    """Heads `(B, T, N, H)` times a matrix for each place `(B or 1, T, axes)`."""
    places = np.broadcast_to(places, (len(heads), *places.shape[1:]))
    axes, result = places.shape[-1], np.zeros_like(heads)
    size = heads.shape[-1] // axes
    for b, t, axis in np.ndindex(places.shape):
        part = slice(axis * size, (axis + 1) * size)
        matrix = rotation(places[b, t, axis], size)
        result[b, t, :, part] = heads[b, t, :, part] @ matrix.T
    return result


def softmax_attention(layer, x, places, causal, seen=None, near=None):
    """What exact attention gives for `x` at `places`, in float64."""
    wq, bq, wk, bk, wv, bv, wo, bo = (
        np.asarray(w, "float64") for w in layer.get_weights()[:8]
    )
    q, k, v = (
        np.einsum("btd,dnh->btnh", x, w) + b for w, b in ((wq, bq), (wk, bk), (wv, bv))
    )
    q, k = turned(q, places), turned(k, places)
    k, v = np.repeat(k, 2, 2), np.repeat(v, 2, 2)
    weights = np.exp(np.einsum("btnh,bsnh->bnts", q, k) / q.shape[-1] ** 0.5)
    distance = np.subtract.outer(np.arange(x.shape[1]), np.arange(x.shape[1]))
    visible = np.ones_like(distance, bool)
    visible &= distance >= 0 if causal else True
    visible &= np.abs(distance) < (near or len(distance))
    weights = weights * visible
    if seen is not None:
        weights = weights * seen[:, None, None]
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, where=total > 0, out=0 * weights)
    return np.einsum("btnv,nvd->btd", np.einsum("bnts,bsnv->btnv", weights, v), wo) + bo


@pytest.mark.parametrize(
    ("rotary", "places", "causal"),
    [(True, np.arange(12)[None, :, None], True), (GRID, PLACES, False)],
)
def test_exact_attention_is_that_of_numpy(causal, rotary, places):
    x, seen = normal((2, 12, 8), 1), np.arange(12) != [[2], [7]]
    plain = softmax_attention(made(ExactAttention), x, 0 * places, causal, seen)
    for kind, near in ((ExactAttention, None), (LocalAttention, 5)):
        layer = made(kind, causal=causal, rotary=rotary)
        expected = softmax_attention(layer, x, places, causal, seen, near)
        output = layer(x, key_mask=seen)
        np.testing.assert_allclose(output, expected, atol=2e-6)
        assert np.abs(expected - plain).max() > 0.1


def test_far_positions_are_as_right_as_near_ones():
    """10^6 and more, spread so far that every frequency of a small head matters."""
    layer, x = made(ExactAttention), normal((2, 12, 8), 1)
    steps = np.random.default_rng(0).integers(1, 10**7, (2, 12))
    for positions in (10**6 + np.arange(12)[None], 10**6 + np.cumsum(steps, 1)):
        expected = softmax_attention(layer, x, positions[..., None], False)
        output = layer(x, positions=positions)
        np.testing.assert_allclose(output, expected, atol=3e-6)


# -- All attentions, against themselves.


def weights_of(layer, other):
    """`layer` with the weights of `other`."""
    layer.set_weights(other.get_weights())
    return layer


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "options"), KINDS[2:])
def test_it_is_the_attention_of_rotated_heads(kind, options, causal):
    """Also features, near and far keys of a window, scores and gradients."""
    layer = made(kind, causal=causal, **options)
    x, seen = tf.constant(normal((2, 12, 8), 1)), np.arange(12) != [[2], [7]]
    positions = np.random.default_rng(0).integers(0, 10**6, (2, 12))
    plain = weights_of(made(kind, causal=causal, rotary=None, **options), layer)

    def called():
        inputs = dict(key_mask=seen, positions=positions)
        return layer(x, **inputs, return_attention_scores=True)

    def by_hand():
        query, key, value = (plain.project(n, x) for n in ("query", "key", "value"))
        query, key = (ops.rotary_embedding(h, positions) for h in (query, key))
        visible = ops.Visibility.of(seen, causal)
        attended, _ = plain.attend(query, key, value, visible)
        return plain.write(attended, None), plain.scores(query, key, visible)

    def results(function):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output, scores = function()
            loss = tf.reduce_sum(output**2)
        return output, scores, tape.gradient(loss, x)

    for one, expected in zip(results(called), results(by_hand)):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-5)
    # and the positions are not ignored
    assert np.abs(layer(x, key_mask=seen) - called()[0]).max() > 1e-2


@pytest.mark.parametrize(("kind", "options"), RELATIVE)
def test_only_the_distance_counts(kind, options):
    layer = made(kind, causal=True, **options)
    x, places = normal((2, 12, 8), 1), np.arange(12)[None]
    for shift in (7, -(10**6)):
        output = layer(x, positions=places + shift)
        np.testing.assert_allclose(output, layer(x), atol=1e-5)
    assert np.abs(layer(x, positions=2 * places) - layer(x)).max() > 1e-2


@pytest.mark.slow
def test_of_random_features_only_the_distance_counts_on_average():
    """One draw of them is not the same in all directions, the mean over draws is."""
    layer = made(num_random_features=128, feature_map="favor+")
    x, places = normal((1, 4, 8), 1, std=0.3), np.arange(4)[None]
    called = tf.function(lambda x, places: layer(x, positions=places))
    outputs = []
    for _ in range(50):
        outputs.append([called(x, places + shift) for shift in (0, 500)])
        layer.redraw_features()
    here, there = np.moveaxis(np.array(outputs), 1, 0)
    errors = (here - there).std(0, ddof=1) / len(outputs) ** 0.5
    assert np.abs((here - there).mean(0) / errors).max() < 4.5
    assert np.abs(here - there).max() > 1e-3


def test_positions_of_later_tokens_count_from_the_first():
    layer = made(causal=True, rotary=GRID)
    x = normal((2, 12, 8), 1)
    whole, last = layer(x, return_state=True)
    assert last["position"].numpy().tolist() == [12, 12]
    _, state = layer(x[:, :7], return_state=True)
    later = layer(x[:, 7:], state=state)
    np.testing.assert_allclose(later, whole[:, 7:], atol=1e-5)
    # given ones count from 0, not from the state
    given = layer(x[:, 7:], state=state, positions=np.arange(7, 12)[None])
    np.testing.assert_allclose(given, whole[:, 7:], atol=1e-5)
    wrong = layer(x[:, 7:], state=state, positions=np.arange(5)[None])
    assert np.abs(wrong - whole[:, 7:]).max() > 1e-2


def test_left_padding():
    x, pad = normal((1, 12, 8), 1), 5
    padded = np.concatenate([normal((1, pad, 8), 2), x], 1)
    seen = np.arange(12 + pad)[None] >= pad
    exact = made(ExactAttention, causal=True)
    output = exact(padded, key_mask=seen)[:, pad:]
    np.testing.assert_allclose(output, exact(x), atol=1e-5)
    # rows of a grid move apart, and random features differ by direction
    for layer in (made(ExactAttention, rotary=GRID), made(causal=True)):
        output = layer(padded, key_mask=seen)[:, pad:]
        assert np.abs(output - layer(x)).max() > 1e-3
        positions = np.maximum(np.arange(12 + pad) - pad, 0)[None]
        output = layer(padded, key_mask=seen, positions=positions)[:, pad:]
        np.testing.assert_allclose(output, layer(x), atol=1e-5)


def test_positions_of_a_grid_are_indices_or_coordinates():
    layer, x = made(rotary=GRID), normal((2, 12, 8), 1)
    expected = layer(x)
    np.testing.assert_array_equal(layer(x, positions=PLACES), expected)
    places = np.repeat(PLACES, 2, 0).astype("int64")
    np.testing.assert_array_equal(layer(x, positions=places), expected)
    np.testing.assert_array_equal(layer(x, positions=np.arange(12)[None]), expected)
    # a grid goes on with further rows; of its first axis the length counts for nothing
    taller = weights_of(made(rotary=(1, 3, 2)), layer)
    np.testing.assert_array_equal(taller(x), expected)


# twice to four times the spacing of numbers, as for a window
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("mixed_bfloat16", 2e-2), ("mixed_float16", 4e-3), ("float64", 1e-5)],
)
def test_other_dtypes_far_away_give_the_same(dtype, tolerance):
    layer = made(ExactAttention)
    other = weights_of(made(ExactAttention, dtype=dtype), layer)
    x, positions = normal((2, 12, 8), 1), 10**6 + 3 * np.arange(12)[None]
    output = other(x, positions=positions)
    assert output.dtype == dtype.removeprefix("mixed_")
    assert relative_error(output, layer(x, positions=positions)) < tolerance


# -- Errors.


@pytest.mark.parametrize(
    ("rotary", "positions", "message"),
    [
        (None, np.zeros((2, 12), int), "with rotary reads.*Received: positions"),
        (True, np.zeros((2, 12)), r"int tensor of shape \(2, 12\),.*dtype float"),
        (True, np.zeros((2, 11), int), r"shape \(2, 12\).*shape \(2, 11\)"),
        (True, np.zeros((12,), int), r"Received: positions of shape \(12,\)"),
        (True, np.zeros((2, 12, 1), int), r"shape \(2, 12\), one for each token\. Rec"),
        (GRID, np.zeros((2, 12, 2), int), r"or \(2, 12, 3\), coordinates of each"),
        (GRID, np.zeros((2, 12, 3), bool), "dtype bool"),
    ],
)
def test_wrong_positions_raise(rotary, positions, message):
    with pytest.raises(ValueError, match=message):
        made(rotary=rotary)(normal((2, 12, 8)), positions=positions)


def test_positions_of_another_length_raise_when_a_graph_runs():
    layer = made()
    called = tf.function(
        lambda x, positions: layer(x, positions=positions),
        input_signature=[
            tf.TensorSpec((None, None, 8)),
            tf.TensorSpec((None, None), tf.int32),
        ],
    )
    x = tf.constant(normal((2, 12, 8)))
    assert called(x, np.zeros((1, 12), "int32")).shape == (2, 12, 8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positions must have a"):
        called(x, np.zeros((2, 1), "int32"))


def test_pieces_without_positions_raise():
    layer = made()
    state = layer.empty_state(2)
    with pytest.raises(ValueError, match="Pieces of a sequence need positions"):
        layer.absorb(tf.constant(normal((2, 12, 8))), None, state)
