"""Padding counts nowhere, whichever mask marks it."""

import keras
import numpy as np
import pytest

from keras_performer import (
    approximation_report,
    calibrate,
    convert_to_performer,
    transfer_attention,
)

# Keras 3.10 warns about every functional model that it makes from a config.
pytestmark = pytest.mark.filterwarnings("ignore:.*structure of `inputs`:UserWarning")

LENGTH, DIM = 23, 6
X = np.random.default_rng(0).normal(size=(2, LENGTH, DIM))
MASK = np.arange(LENGTH) < [[LENGTH], [LENGTH - 6]]


def converted(model):
    options = dict(exact_window=3, num_random_features=8, seed=0)
    return convert_to_performer(model, **options)[0]


def of_report(model, data):
    heads = approximation_report(model, data, num_rows=99, seed=0).heads
    return [head.phi for head in heads]


def of_calibration(model, data):
    _, report = calibrate(converted(model), data, verbose=0)
    return report.layers[0][3:]


def of_transfer(model, data):
    new, report = transfer_attention(
        converted(model), model, data, num_steps=3, verbose=0
    )
    return [*report.layers[0][1:3], *new.weights]


@pytest.mark.parametrize(
    "measured, dtype",
    [
        # Keras casts query and value there, which are then two tensors
        (of_report, "mixed_bfloat16"),
        (of_calibration, "float32"),
        (of_transfer, "float32"),
    ],
)
def test_padding_does_not_count(measured, dtype):
    found = []
    for padding in (0.0, 3.0):
        keras.utils.set_random_seed(3)
        start, there = keras.Input((LENGTH, DIM)), keras.Input((LENGTH,), dtype="bool")
        masks = dict(query_mask=there, value_mask=there)
        if padding:
            masks = dict(attention_mask=keras.ops.expand_dims(there, 1))
        layer = keras.layers.MultiHeadAttention(2, 3, dtype=dtype)
        model = keras.Model([start, there], layer(start, start, **masks))
        x = np.where(MASK[..., np.newaxis], X, padding).astype("float32")
        found.append(measured(model, [x, MASK]))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
