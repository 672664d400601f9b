"""Dropout of Linformer and Synthesizer drops weights, not attended values.

`test_keras_multi_head_attention.py` compares dropout of exact attention with Keras.
"""

import numpy as np
import pytest

from keras_performer.zoo import LinformerAttention, SynthesizerAttention
from tests.layers.inputs import normal

LENGTH, HEADS, RATE = 12, 4, 0.3
KINDS = {
    "linformer": lambda **given: LinformerAttention(
        HEADS, 3, max_length=LENGTH, projection_dim=LENGTH, **given
    ),
    "synthesizer": lambda **given: SynthesizerAttention(
        HEADS, 3, max_length=LENGTH, kind="random", **given
    ),
}


def showing_weights(kind):
    """Returns a layer that outputs its weights two times, `(B, T, N, 2 S)`."""
    twice = np.concatenate([np.eye(LENGTH)] * 2, 1)
    shape = HEADS, 2 * LENGTH
    options = dict(value_dim=shape[1], output_shape=shape, use_bias=False)
    layer = KINDS[kind](dropout=RATE, seed=4, **options)
    layer.build((None, None, 6), (None, None, LENGTH), (None, None, 6))
    kernel = layer.value_dense.kernel
    kernel.assign(np.repeat(twice[:, np.newaxis], kernel.shape[1], 1))
    layer.output_dense.kernel.assign(np.eye(np.prod(shape)).reshape(shape * 2))
    if kind == "linformer":  # each mixture is one key
        layer.key_projection.assign(np.eye(LENGTH))
        layer.value_projection.assign(np.eye(LENGTH))
    return layer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [False, True])
def test_weights_are_dropped_and_the_others_scaled(kind, masked):
    mask = np.arange(LENGTH) % 5 != np.arange(6)[:, np.newaxis] % 4
    values = np.tile(np.eye(LENGTH, dtype="float32"), (6, 1, 1))
    inputs = normal((6, LENGTH, 6)), values, normal((6, LENGTH, 6), 1)
    call = dict(training=True, return_attention_scores=True)
    call |= dict(key_mask=mask) if masked else {}
    output, weights = showing_weights(kind)(*inputs, **call)
    first, second = np.split(np.moveaxis(output, 2, 1), 2, -1)
    np.testing.assert_array_equal(first, second)
    seen, kept = weights.numpy() > 1e-6, first > 0
    scaled = np.where(kept, weights / (1 - RATE), 0)
    np.testing.assert_allclose(first[seen], scaled[seen], rtol=1e-5)
    error = np.sqrt(RATE * (1 - RATE) / seen.sum())
    assert abs(kept[seen].mean() - (1 - RATE)) < 4 * error
    # sampled anew for each sequence, head and query
    for axis in range(3):
        same = (np.roll(kept, 1, axis) == kept)[seen]
        assert same.mean() < 0.9
