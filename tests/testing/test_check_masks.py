"""`check_masks` finds layers that use masked tokens, and no others."""

import keras
import numpy as np
import pytest

import keras_performer
from keras_performer.testing import check_masks

DIM = 6
IDS = np.array([[3, 7, 2, 9, 0, 0], [5, 1, 0, 0, 0, 0]])


def of_ids(*layers):
    """Returns a model of these layers after an embedding that masks 0."""
    embedding = keras.layers.Embedding(10, DIM, mask_zero=True)
    return keras.Sequential([keras.Input((6,), dtype="int32"), embedding, *layers])


def attending(uses_mask=False, opposite=False, axes=0):
    """Returns self-attention with its mask, or the opposite, as an input.

    The mask has further axes of size 1.
    """
    x, mask = keras.Input((None, DIM)), keras.Input((None, *[1] * axes), dtype="bool")
    seen = keras.ops.reshape(mask, (-1, 1, 6))
    seen = keras.ops.logical_not(seen) if opposite else seen
    attention = keras.layers.MultiHeadAttention(2, 4, name="attention")
    y = attention(x, x, attention_mask=seen) if uses_mask else attention(x, x)
    return keras.Model([x, mask], y)


RIGHT = {
    "attention": lambda: of_ids(
        keras_performer.PerformerAttention(2, 4),
        keras.layers.Dense(3),
        keras.layers.GlobalAveragePooling1D(),
    ),
    "recurrent": lambda: of_ids(keras.layers.LSTM(4)),
    "masking": lambda: keras.Sequential(
        [keras.Input((None, 3)), keras.layers.Masking(), keras.layers.LSTM(4)]
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_models_that_use_their_masks_pass(name):
    check_masks(RIGHT[name]())


class Sum(keras.layers.Layer):
    """Layer that adds the sum of all tokens, also masked ones, and keeps the mask."""

    supports_masking = True

    def call(self, x):
        return x + keras.ops.sum(x, 1, keepdims=True)


LEAKS = {
    "convolution": lambda: of_ids(
        keras.layers.Conv1D(4, 3, padding="same", name="convolution")
    ),
    "flat": lambda: of_ids(keras.layers.Flatten(name="flat"), keras.layers.Dense(3)),
    "sum": lambda: of_ids(
        Sum(name="sum"), keras.layers.Dense(2), keras.layers.GlobalAveragePooling1D()
    ),
    # the reshaped tensor has no mask
    "last": lambda: of_ids(
        keras.layers.Reshape((6, DIM)), keras.layers.LSTM(4, name="last")
    ),
}


# Keras also warns about some
@pytest.mark.filterwarnings("ignore:.*was passed an input with a mask")
@pytest.mark.parametrize("name", LEAKS)
def test_the_layer_that_looks_at_masked_tokens_is_named(name):
    with pytest.raises(AssertionError, match=rf"is (\S*/)?{name} \("):
        check_masks(LEAKS[name](), IDS)


@pytest.mark.parametrize(("opposite", "axes"), [(False, 0), (True, 0), (True, 1)])
def test_masks_among_the_inputs(opposite, axes):
    x = np.random.default_rng(0).normal(size=(2, 6, DIM)).astype("float32")
    mask = (IDS > 0) != opposite
    inputs = [x, mask.reshape(2, 6, *[1] * axes)]
    check_masks(attending(True, opposite, axes), inputs, IDS > 0)
    with pytest.raises(AssertionError, match=r"attention \(MultiHeadAttention\)"):
        check_masks(attending(False, opposite, axes), inputs, IDS > 0)


@pytest.mark.filterwarnings("ignore:.*was passed an input with a mask")
@pytest.mark.parametrize("uses_mask", [True, False])
def test_masks_of_two_lengths(uses_mask):
    pooling = keras.layers.GlobalAveragePooling1D, keras.layers.GlobalMaxPooling1D
    pooled = pooling[not uses_mask](name="pooled")
    embedding = keras.layers.Embedding(10, DIM, mask_zero=True)
    first, second = (keras.Input((None,), dtype="int32") for _ in range(2))
    outputs = [keras.layers.LSTM(3)(embedding(first)), pooled(embedding(second))]
    model = keras.Model([first, second], keras.layers.Concatenate()(outputs))
    if uses_mask:
        check_masks(model, [IDS, IDS[:, 1:5]])
    else:
        with pytest.raises(AssertionError, match="pooled"):
            check_masks(model, [IDS, IDS[:, 1:5]])


def test_masks_of_numbers_in_a_dict():
    class Model(keras.Model):
        def __init__(self, uses_mask):
            super().__init__()
            self.uses_mask = uses_mask

        def call(self, inputs):
            x = keras.ops.cast(inputs["token_ids"], "float32")
            if self.uses_mask:
                x *= keras.ops.cast(inputs["padding_mask"], "float32")
            return keras.ops.sum(x, 1)

    ids = np.random.default_rng(0).integers(1, 99, size=(2, 6))
    inputs = {"token_ids": ids, "padding_mask": (IDS > 0).astype("int32")}
    check_masks(Model(True), inputs, IDS > 0)
    with pytest.raises(AssertionError, match=r"\(Model\)"):
        check_masks(Model(False), inputs, IDS > 0)


@pytest.mark.parametrize(
    ("model", "inputs", "mask", "message"),
    [
        (lambda: of_ids(keras.layers.Dense(2)), IDS.clip(1), None, "false for others"),
        (lambda: keras.layers.Dense(2), np.ones((2, 6, 3)), None, "from layers of"),
        (attending, [np.ones((2, 6, DIM))] * 2, IDS[:, :5] > 0, r"shape \(2, 5\)"),
        (attending, [np.ones((2, 6, DIM))] * 2, np.ones((2, 6)), "true for 12"),
        (attending, None, None, "from layers of the model"),
    ],
)
def test_what_cannot_be_checked_is_an_error(model, inputs, mask, message):
    with pytest.raises(ValueError, match=message):
        check_masks(model(), inputs, mask)
