"""Attention over some axes of an input equals attention over slices of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer.layers.call_inputs import AttentionAxes
from tests.contract import relative_error
from tests.layers.inputs import normal, small_layer

ROWS, COLUMNS, DEPTH, DIM = 3, 5, 2, 7


def along_one_axis(layer, x):
    """The weights of `layer` on inputs `(B, length, dim)`."""
    plain = small_layer(causal=layer.causal)
    plain.build((None, None, DIM))
    plain.set_weights(layer.get_weights())
    return plain(x).numpy()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axes", [2, (2,), [-2]])
def test_last_axis_of_rank_four_equals_slices(causal, axes):
    layer = small_layer(attention_axes=axes, causal=causal)
    x = normal((2, ROWS, COLUMNS, DIM))
    output = layer(x)
    expected = [along_one_axis(layer, x[:, i]) for i in range(ROWS)]
    assert relative_error(output, np.stack(expected, axis=1)) < 1e-6


@pytest.mark.parametrize("causal", [False, True])
def test_first_axis_of_rank_four_equals_slices(causal):
    layer = small_layer(attention_axes=1, causal=causal)
    x = normal((2, ROWS, COLUMNS, DIM))
    output, scores = layer(x, return_attention_scores=True)
    expected = [along_one_axis(layer, x[:, :, j]) for j in range(COLUMNS)]
    assert relative_error(output, np.stack(expected, axis=2)) < 1e-6
    assert scores.shape == (2, COLUMNS, 3, ROWS, ROWS)
    plain = small_layer(causal=causal)
    plain.build((None, None, DIM))
    plain.set_weights(layer.get_weights())
    for j in range(COLUMNS):
        _, expected = plain(x[:, :, j], return_attention_scores=True)
        assert relative_error(scores[:, j], expected) < 1e-6


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2), None])
def test_scores_have_the_shape_of_multi_head_attention(axes):
    query = normal((2, ROWS, ROWS, DIM))
    exact = keras.layers.MultiHeadAttention(3, 4, attention_axes=axes)
    _, expected = exact(query, query, return_attention_scores=True)
    layer = small_layer(attention_axes=axes)
    _, scores = layer(query, query, return_attention_scores=True)
    assert scores.shape == expected.shape


def test_two_axes_of_rank_five_equal_one_long_axis():
    layer = small_layer(attention_axes=(1, 3))
    x = normal((2, ROWS, COLUMNS, DEPTH, DIM))
    output = layer(x)
    for j in range(COLUMNS):
        flat = x[:, :, j].reshape(2, ROWS * DEPTH, DIM)
        expected = along_one_axis(layer, flat).reshape(2, ROWS, DEPTH, DIM)
        assert relative_error(output[:, :, j], expected) < 1e-6


def test_all_axes_is_the_default():
    layer = small_layer()
    x = normal((2, ROWS, COLUMNS, DIM))
    output = layer(x)
    expected = along_one_axis(layer, x.reshape(2, ROWS * COLUMNS, DIM))
    assert relative_error(output, expected.reshape(x.shape)) < 1e-6


def test_cross_attention_to_another_number_of_columns():
    layer = small_layer(attention_axes=2)
    query = normal((2, ROWS, COLUMNS, DIM))
    value = normal((2, ROWS, COLUMNS + 2, 6), seed=1)
    output = layer(query, value)
    plain = small_layer()
    plain.build((None, None, DIM), (None, None, 6))
    plain.set_weights(layer.get_weights())
    expected = [plain(query[:, i], value[:, i]) for i in range(ROWS)]
    assert relative_error(output, np.stack(expected, axis=1)) < 1e-6


@pytest.mark.parametrize("known", [False, True])
def test_batches_of_different_sizes_raise(known):
    """Also where attention over one axis has as many sequences in all."""

    def attend(layer, query, value):
        # once of equal sizes: the layer is built
        layer(query, query)
        unknown = tf.TensorSpec((*[None] * (query.ndim - 1), DIM))
        signature = None if known else [unknown, unknown]
        return tf.function(layer, input_signature=signature)(query, value)

    wanted = ValueError if known else tf.errors.InvalidArgumentError
    message = "query, key and value must have the same sizes in the batch axis"
    layer = small_layer(attention_axes=2)
    with pytest.raises(wanted, match=message):
        attend(layer, normal((2, 3, 5, DIM)), normal((3, 2, 5, DIM)))
    for sizes in ((1, 4), (4, 1)):
        layer = small_layer(num_key_value_heads=1)
        with pytest.raises(wanted, match=message):
            attend(layer, *(normal((size, 5, DIM)) for size in sizes))


@pytest.mark.parametrize("axes", [0, 3, -1, (1, 4), ()])
def test_axes_that_are_batch_or_features_or_missing_raise(axes):
    layer = small_layer(attention_axes=axes)
    with pytest.raises(ValueError, match="attention_axes.*rank 4"):
        layer(normal((2, ROWS, COLUMNS, DIM)))


def test_unfold_is_the_inverse_of_fold():
    x = normal((2, ROWS, COLUMNS, DEPTH, DIM, 4))
    axes = AttentionAxes(5, (3, 1))
    folded = axes.fold(x)
    assert folded.shape == (2 * COLUMNS, DEPTH * ROWS, DIM, 4)
    np.testing.assert_array_equal(axes.unfold(folded, like=x[..., 0]), x)
    # two positions by hand: batch 1, row 2, column 3, depth 1
    np.testing.assert_array_equal(folded[1 * COLUMNS + 3, 1 * ROWS + 2], x[1, 2, 3, 1])
