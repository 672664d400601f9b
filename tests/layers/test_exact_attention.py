"""Dropout of attention with a matrix of weights drops weights, not attended values.

`test_keras_multi_head_attention.py` compares it with Keras.
"""

import numpy as np
import pytest

from keras_performer.layers import ExactAttention
from keras_performer.zoo import LinformerAttention, SynthesizerAttention
from tests.layers.inputs import normal

LENGTH, HEADS, RATE = 12, 4, 0.3
KINDS = {
    "exact": lambda **given: ExactAttention(HEADS, 3, **given),
    "causal": lambda **given: ExactAttention(HEADS, 3, causal=True, **given),
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


def inputs_of(batch=6):
    values = np.tile(np.eye(LENGTH, dtype="float32"), (batch, 1, 1))
    return normal((batch, LENGTH, 6)), values, normal((batch, LENGTH, 6), 1)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        *((kind, "key_mask") for kind in KINDS),
        ("exact", "plain"),
        ("causal", "segment_ids"),
    ],
)
def test_weights_are_dropped_and_the_others_scaled(kind, call):
    mask = np.arange(LENGTH) % 5 != np.arange(6)[:, np.newaxis] % 4
    given = {
        "plain": {},
        "key_mask": dict(key_mask=mask),
        "segment_ids": dict(segment_ids=np.tile(np.arange(LENGTH) // 4, (6, 1))),
    }[call]
    layer = showing_weights(kind)
    output, weights = layer(
        *inputs_of(), training=True, return_attention_scores=True, **given
    )
    first, second = np.split(np.moveaxis(output, 2, 1), 2, -1)
    np.testing.assert_array_equal(first, second)
    seen, kept = weights.numpy() > 1e-6, first > 0
    scaled = np.where(kept, weights / (1 - RATE), 0)
    np.testing.assert_allclose(first[seen], scaled[seen], rtol=1e-5)
    error = np.sqrt(RATE * (1 - RATE) / seen.sum())
    assert abs(kept[seen].mean() - (1 - RATE)) < 4 * error
    # sampled anew for each sequence, head, query and key
    if call == "plain" and kind != "causal":
        for axis in range(4):
            same = np.roll(kept, 1, axis) == kept
            assert abs(same.mean() - (RATE**2 + (1 - RATE) ** 2)) < 6 * error
