"""`AttentionLayer(rotary=...)`: rotary positions in every attention."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
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


# -- All attentions, against themselves.


def weights_of(layer, other):
    """`layer` with the weights of `other`."""
    layer.set_weights(other.get_weights())
    return layer


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
