"""`segment_ids`: each attention keeps the segments of packed sequences apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers import (
    AttentionLayer,
    ExactAttention,
    LocalAttention,
    PerformerAttention,
    PerformerBlock,
)
from tests.layers.inputs import language_model

SIZES = dict(num_heads=4, key_dim=3, num_key_value_heads=2, seed=1)
MAKERS = {
    "performer": lambda **o: PerformerAttention(chunk_size=4, **SIZES, **o),
    "relu": lambda **o: PerformerAttention(
        feature_map="relu", chunk_size=4, **SIZES, **o
    ),
    "window": lambda **o: PerformerAttention(
        exact_window=3, chunk_size=4, **SIZES, **o
    ),
    "local": lambda **o: LocalAttention(sliding_window=3, **SIZES, **o),
    "exact": lambda **o: ExactAttention(**SIZES, **o),
}
# The id 7 comes back: another segment.
IDS = np.array([[7] * 5 + [2] + [7] * 11 + [0] * 3, [3] * 12 + [1] * 8])
CUTS = (0, 5, 6, 17, 20), (0, 12, 20)
X = np.random.default_rng(0).standard_normal((2, 20, 8)).astype("float32")
MASK = np.random.default_rng(1).random((2, 20)) < 0.7


def alone(layer, x=X, mask=MASK):
    """Each segment in a call of its own."""
    outputs = []
    for example, cuts in enumerate(CUTS):
        own = slice(example, example + 1)
        pieces = [slice(*ends) for ends in zip(cuts, cuts[1:])]
        segments = [
            layer(x[own, piece], query_mask=mask[own, piece]) for piece in pieces
        ]
        outputs.append(tf.concat(segments, 1))
    return tf.concat(outputs, 0)


@pytest.mark.parametrize("name", ["performer", "window", "exact"])
def test_scores_of_other_segments_are_0(name):
    layer = MAKERS[name]()
    _, scores = layer(X, segment_ids=IDS, return_attention_scores=True)
    number = np.cumsum(np.diff(IDS, axis=1, prepend=IDS[:, :1]) != 0, axis=1)
    same = number[:, :, None] == number[:, None]
    np.testing.assert_array_equal(np.all(scores == 0, axis=1), ~same)
    np.testing.assert_allclose(tf.reduce_sum(scores, -1), 1, atol=1e-5)


@pytest.mark.slow
def test_a_functional_model_with_an_input_of_ids():
    """Checks unknown lengths, Keras' mask, saving, and half precision."""
    tokens = keras.Input((None,), dtype="int32")
    segment_ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 8, mask_zero=True)(tokens)
    layer = MAKERS["performer"](causal=True, dtype="mixed_bfloat16", name="attend")
    model = keras.Model([tokens, segment_ids], layer(x, segment_ids=segment_ids))
    inputs = [np.random.default_rng(2).integers(0, 9, (2, 20)), IDS]
    found = model(inputs)
    attend = model.get_layer("attend")
    expected = alone(attend, model.layers[1](inputs[0]).numpy(), inputs[0] != 0)
    tolerance = np.abs(tf.cast(expected, "float32")).max() / 32
    difference = tf.cast(found, "float32") - tf.cast(expected, "float32")
    assert np.abs(difference).max() < tolerance
    model.save("model.keras")
    again = keras.saving.load_model("model.keras")
    np.testing.assert_array_equal(again(inputs), found)


@pytest.mark.slow
def test_xla():
    layer = MAKERS["local"](causal=True)
    compiled = tf.function(layer.__call__, jit_compile=True)
    expected = layer(X, segment_ids=IDS)
    found = compiled(tf.constant(X), segment_ids=tf.constant(IDS))
    np.testing.assert_allclose(found, expected, atol=5e-6)


def test_a_block_and_a_model_pass_them_on():
    block = PerformerBlock(MAKERS["performer"](causal=True), 16)
    found = block(X, segment_ids=IDS)
    alone = block(X[:1, 6:17])
    np.testing.assert_allclose(found[:1, 6:17], alone, atol=5e-6)

    model = language_model(9, 20, 2, 2, 8, num_random_features=8, seed=1)
    tokens = np.random.default_rng(3).integers(0, 9, (2, 20))
    whole = model(tokens, segment_ids=IDS)
    changed = np.where(IDS == 2, (tokens + 1) % 9, tokens)
    again = model(changed, segment_ids=IDS)
    np.testing.assert_allclose(again[0, 6:], whole[0, 6:], atol=1e-6)
    assert np.abs(again[0, 5] - whole[0, 5]).max() > 1e-3
    state, outputs = model.get_initial_state(2, packed=True), []
    for piece in (slice(0, 6), slice(6, 20)):
        output, state = model(
            tokens[:, piece],
            segment_ids=IDS[:, piece],
            state=state,
            return_state=True,
        )
        outputs.append(output)
    np.testing.assert_allclose(tf.concat(outputs, 1), whole, atol=2e-5)


class Mean(AttentionLayer):
    """Attention that knows nothing of segments."""

    projections = ("value",)

    def attend(self, query, key, value, visible, state=None, training=None):
        return tf.reduce_mean(value, 1, keepdims=True) + 0 * value, None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MAKERS["performer"]()(X, X[:, :9], segment_ids=IDS), "self-attention"),
        (lambda: MAKERS["performer"]()(X, segment_ids=IDS[:, :9]), "of shape"),
        (lambda: MAKERS["performer"]()(X, segment_ids=IDS / 2), "must be ints"),
        (lambda: Mean(2, 3)(X, segment_ids=IDS), "Mean cannot keep segments"),
        (
            lambda: MAKERS["performer"](causal=True)(
                X, segment_ids=IDS, state=MAKERS["performer"]().get_initial_state(2)
            ),
            "packed=True",
        ),
        (
            lambda: language_model(9, 20, 1, 2, 8, recompute="block")(
                tf.zeros((2, 20), tf.int32), segment_ids=IDS, training=True
            ),
            "recompute=None",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_ids_of_64_bits_and_of_one_row_for_all():
    x = tf.random.stateless_normal((2, 12, 6), seed=(0, 3))
    layer = PerformerAttention(2, 4, seed=0, num_random_features=8)
    ids = np.array([[0] * 5 + [1] * 7] * 2)
    expected = layer(x, segment_ids=ids)
    for given in (ids[:1], ids * 2**32):
        np.testing.assert_array_equal(layer(x, segment_ids=given), expected)
