"""Masks hide keys, and `segment_ids` separate sequences.

`test_definitions.py` tests the numbers of each attention, `test_state.py` its states.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers import ExactAttention, PerformerAttention
from tests.contract import relative_error
from tests.layers.inputs import in_pieces, language_model, normal, small_layer

LENGTH = 8
QUERY, KEYS = normal((2, 5, 7)), normal((2, LENGTH, 6), seed=1)
VISIBLE = np.array([0, 1, 1, 0, 1, 1, 1, 0], bool)


def forms(mask):
    """Returns the mask `(B, S)` in every form that the layer takes."""
    everything = np.ones_like(mask)
    half = np.arange(mask.shape[-1]) % 2 == 0
    return {
        "value_mask": dict(value_mask=mask),
        "key_mask": dict(key_mask=mask),
        "(B, 1, S)": dict(attention_mask=mask[:, None]),
        "(B, 1, 1, S)": dict(attention_mask=mask[:, None, None]),
        "int": dict(attention_mask=mask[:, None].astype("int32")),
        "float": dict(value_mask=mask.astype("float32")),
        "two masks": dict(value_mask=mask | half, key_mask=mask | ~half),
        "three masks": dict(
            value_mask=everything,
            key_mask=mask | half,
            attention_mask=(mask | ~half)[:, None],
        ),
    }


def test_every_form_of_mask_equals_dropping_the_keys():
    layer = small_layer()
    # two examples that hide different keys
    mask = np.stack([VISIBLE, ~VISIBLE])
    expected = np.concatenate(
        [layer(QUERY[i : i + 1], KEYS[i : i + 1, mask[i]]) for i in range(2)]
    )
    assert relative_error(layer(QUERY, KEYS), expected) > 0.05
    for form, call in forms(mask).items():
        assert relative_error(layer(QUERY, KEYS, **call), expected) < 1e-6, form
    # a mask of batch size one applies to the whole batch
    expected = layer(QUERY, KEYS[:, VISIBLE])
    for form, call in forms(VISIBLE[None]).items():
        assert relative_error(layer(QUERY, KEYS, **call), expected) < 1e-6, form


@pytest.mark.parametrize("name", ["key_mask", "attention_mask"])
def test_masks_of_unknown_shape_in_a_graph(name):
    layer, mask = small_layer(), np.stack([VISIBLE, ~VISIBLE])
    middle = [1] * (name == "attention_mask")

    def graph(*mask_shape):
        shapes = tf.TensorSpec((None, None, 6)), tf.TensorSpec(mask_shape, tf.bool)
        return tf.function(
            lambda x, mask: layer(x, x, **{name: mask}), input_signature=shapes
        )

    run = graph(None, *middle, None)
    for rows in (2, 1):  # batch size one, which the graph does not know
        output = run(KEYS, mask[:rows].reshape(rows, *middle, LENGTH))
        expected = layer(KEYS, KEYS, key_mask=mask[:rows])
        assert relative_error(output, expected) < 1e-6
    # two of these have as many values as the right one, (2, 8)
    for shape in ((8, 2), (16, 1), (2, 7), (2, 1), (4, LENGTH)):
        wrong = np.ones((shape[0], *middle, shape[1]), bool)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"{name} must have a va"
        ):
            run(KEYS, wrong)
    if middle:  # the graph must know that a mask does not differ by query
        with pytest.raises(ValueError, match="attention_mask"):
            graph(None, None, None)(KEYS, mask[:, None])


def test_a_mask_that_differs_by_query_or_head_raises():
    layer = small_layer()
    # Keras takes the first shape as (T, S), even if T is the batch size
    for shape in ((2,), (2, 5), (2, 1, 5), (2, 3, 1)):
        with pytest.raises(ValueError, match=r"not differ by query.*\(B, 1, 1, S\)"):
            layer(QUERY, KEYS, attention_mask=np.ones((*shape, LENGTH), bool))
    with pytest.raises(ValueError, match="query_mask must have shape"):
        layer(QUERY, KEYS, query_mask=np.ones((2, LENGTH), bool))
    # Keras takes these as masks of queries
    for shape in ((2, 5, 1), (1, 5, 1), (2, 1, 5, 1)):
        message = r"query_mask \(B, T\) for queries that see no"
        with pytest.raises(ValueError, match=message):
            layer(QUERY, KEYS, attention_mask=np.ones(shape, bool))


def test_query_mask_hides_rows_only():
    layer = small_layer()
    mask = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], bool)
    output, scores = layer(QUERY, KEYS, query_mask=mask, return_attention_scores=True)
    plain, plain_scores = layer(QUERY, KEYS, return_attention_scores=True)
    bias = layer.output_dense.bias.numpy()
    np.testing.assert_array_equal(output, np.where(mask[..., None], plain, bias))
    expected = np.where(mask[:, None, :, None], plain_scores, 0)
    np.testing.assert_array_equal(scores, expected)


def test_implicit_mask_reaches_the_layer_and_what_comes_after():
    """Tests `Embedding(mask_zero=True)`, attention, pooling; warnings are errors."""
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, 6, mask_zero=True)(tokens)
    x = small_layer(causal=True)(x)
    model = keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(x))
    padded = np.array([[3, 1, 4, 1, 5, 0, 0], [2, 7, 1, 0, 0, 0, 0]])
    output = model(padded).numpy()
    for row, length in enumerate((5, 3)):
        expected = model(padded[row : row + 1, :length])
        assert relative_error(output[row : row + 1], expected) < 1e-5
    model.compile("sgd", "mse", run_eagerly=True)
    assert np.isfinite(model.train_on_batch(padded, np.ones((2, 6))))


def test_implicit_masks_of_query_value_and_key_are_their_own():
    embed = keras.layers.Embedding(11, 6, mask_zero=True)
    query, key = embed(np.array([[3, 0, 4]])), embed(np.array([[5, 0, 0, 2, 6]]))
    value = embed(np.array([[0, 9, 8, 7, 6]]))
    layer = small_layer()
    output = layer(query, value, key)
    rows = ((query, [0, 2]), (value, [3, 4]), (key, [3, 4]))
    expected = layer(*(x.numpy()[:, seen] for x, seen in rows))
    assert relative_error(output.numpy()[:, [0, 2]], expected) < 1e-6
    np.testing.assert_array_equal(output[0, 1], layer.output_dense.bias)
    np.testing.assert_array_equal(output._keras_mask, [[True, False, True]])
    # an explicit mask combines with them
    output = layer(query, value, key, attention_mask=np.array([[[1, 1, 1, 0, 1]]]))
    expected = layer(query.numpy(), value.numpy()[:, 4:], key.numpy()[:, 4:])
    assert relative_error(output[:, ::2], expected[:, ::2]) < 1e-6


# -- Segments of packed rows.


@pytest.mark.parametrize("kind", [ExactAttention, PerformerAttention])
def test_segments_have_one_key_for_each_query_also_in_a_graph(kind):
    layer = kind(2, 4)
    spec = [tf.TensorSpec((None, None, 8))] * 2 + [tf.TensorSpec((None, None), "int32")]
    graph = tf.function(
        lambda query, value, ids: layer(query, value, segment_ids=ids),
        input_signature=spec,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment_ids need self-"):
        graph(tf.ones((2, 6, 8)), tf.ones((2, 9, 8)), tf.ones((2, 6), "int32"))


# The id 7 repeats later, as another segment.
SEGMENTS = np.array([[7] * 5 + [2] + [7] * 11 + [0] * 3, [3] * 12 + [1] * 8])
PACKED = np.random.default_rng(0).standard_normal((2, 20, 8)).astype("float32")


def attention(**options):
    sizes = dict(num_key_value_heads=2, seed=1, chunk_size=4)
    return PerformerAttention(4, 3, **sizes, **options)


def test_a_model_passes_them_on():
    model = language_model(9, 20, 2, 2, 8, num_random_features=8, seed=1)
    tokens = np.random.default_rng(3).integers(0, 9, (2, 20))
    whole = model(tokens, segment_ids=SEGMENTS)
    changed = np.where(SEGMENTS == 2, (tokens + 1) % 9, tokens)
    again = model(changed, segment_ids=SEGMENTS)
    np.testing.assert_allclose(again[0, 6:], whole[0, 6:], atol=1e-6)
    assert np.abs(again[0, 5] - whole[0, 5]).max() > 1e-3
    pieces, _ = in_pieces(model, tokens, 6, segment_ids=SEGMENTS)
    np.testing.assert_allclose(pieces, whole, atol=2e-5)


def test_ids_of_64_bits_and_of_one_row_for_all():
    layer = attention()
    ids = np.array([[0] * 5 + [1] * 15] * 2)
    expected = layer(PACKED, segment_ids=ids)
    for given in (ids[:1], ids * 2**32):
        np.testing.assert_array_equal(layer(PACKED, segment_ids=given), expected)
