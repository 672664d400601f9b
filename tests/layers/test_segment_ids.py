"""`segment_ids`: models keep segments of packed sequences apart, and what is refused.

The numbers of each attention are in `test_definitions.py`, with states in
`test_state.py`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers import PerformerAttention, PerformerBlock
from tests.layers.inputs import language_model

# The id 7 comes back: another segment.
IDS = np.array([[7] * 5 + [2] + [7] * 11 + [0] * 3, [3] * 12 + [1] * 8])
X = np.random.default_rng(0).standard_normal((2, 20, 8)).astype("float32")


def attention(**options):
    sizes = dict(num_key_value_heads=2, seed=1, chunk_size=4)
    return PerformerAttention(4, 3, **sizes, **options)


@pytest.mark.slow
def test_a_functional_model_with_an_input_of_ids():
    """Checks unknown lengths, Keras' mask, saving, and half precision."""
    tokens = keras.Input((None,), dtype="int32")
    segment_ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 8, mask_zero=True)(tokens)
    layer = attention(causal=True, dtype="mixed_bfloat16")
    model = keras.Model([tokens, segment_ids], layer(x, segment_ids=segment_ids))
    inputs = [np.random.default_rng(2).integers(0, 9, (2, 20)), IDS]
    found = model(inputs)
    for row, start, end in ((0, 6, 17), (1, 12, 20)):
        piece = [x[row : row + 1, start:end] for x in inputs]
        expected = tf.cast(model(piece), "float32")[0]
        difference = tf.cast(found[row, start:end], "float32") - expected
        assert np.abs(difference).max() < np.abs(expected).max() / 32
    model.save("model.keras")
    again = keras.saving.load_model("model.keras")
    np.testing.assert_array_equal(again(inputs), found)


def test_a_block_and_a_model_pass_them_on():
    block = PerformerBlock(attention(causal=True), 16)
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
        given = dict(segment_ids=IDS[:, piece], state=state, return_state=True)
        output, state = model(tokens[:, piece], **given)
        outputs.append(output)
    np.testing.assert_allclose(tf.concat(outputs, 1), whole, atol=2e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention()(X, X[:, :9], segment_ids=IDS), "self-attention"),
        (lambda: attention()(X, segment_ids=IDS[:, :9]), "of shape"),
        (
            lambda: attention(causal=True)(
                X, segment_ids=IDS, state=attention().get_initial_state(2)
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
    layer = attention()
    ids = np.array([[0] * 5 + [1] * 15] * 2)
    expected = layer(X, segment_ids=ids)
    for given in (ids[:1], ids * 2**32):
        np.testing.assert_array_equal(layer(X, segment_ids=given), expected)
