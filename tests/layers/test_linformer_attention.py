"""`LinformerAttention` beside equation 7 of its paper."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer.zoo import LinformerAttention
from tests.layers.inputs import normal
from tests.layers.twins import (
    assert_is_twin,
    heads,
    randomize,
    softmax,
    weights_of,
    written,
)

SHARING = "none", "headwise", "key-value"


def small(sharing="headwise", shape=(2, 7, 5), **options):
    defaults = dict(value_dim=2, max_length=11, projection_dim=6, dtype="float64")
    layer = LinformerAttention(4, 3, sharing=sharing, **{**defaults, **options})
    layer.build(shape)
    randomize(layer)
    return layer


def projections(weights, head):
    """E and F of a key-value head, `(max_length, k)`."""
    e = weights["key_projection"]
    f = weights.get("value_projection", e)
    return (x[head] if x.ndim == 3 else x for x in (e, f))


def linformer(weights, query, value=None, key_mask=None):
    """softmax(Q (E K)^T / sqrt(H)) F V, head after head."""
    value = query if value is None else value
    length = value.shape[1]
    seen = np.ones(value.shape[:2]) if key_mask is None else key_mask
    q = heads(weights, "query", query)
    k = heads(weights, "key", value) * seen[..., None, None]
    v = heads(weights, "value", value) * seen[..., None, None]
    attended = np.zeros((*q.shape[:3], v.shape[3]))
    for b in range(q.shape[0]):
        for n in range(q.shape[2]):
            head = n // (q.shape[2] // k.shape[2])
            e, f = (x[:length].T for x in projections(weights, head))
            logits = q[b, :, n] @ (e @ k[b, :, head]).T / np.sqrt(q.shape[3])
            attended[b, :, n] = softmax(logits) @ (f @ v[b, :, head])
    return written(weights, attended)


@pytest.mark.parametrize(
    "sharing, num_key_value_heads, length",
    [("none", 2, 7), ("headwise", 4, 1), ("key-value", 2, 11)],
)
def test_it_is_the_equation(sharing, num_key_value_heads, length):
    layer = small(sharing, num_key_value_heads=num_key_value_heads)
    seen = np.ones((2, length), bool)
    seen[0, 4:] = seen[1, 1:2] = False
    assert_is_twin(layer, linformer, [normal((2, length, 5), 1)], key_mask=seen)


def test_keys_may_be_of_another_sequence():
    layer = LinformerAttention(4, 3, max_length=11, projection_dim=6, dtype="float64")
    inputs = normal((2, 13, 5), 1), normal((2, 7, 3), 2)
    layer.build(*(x.shape for x in inputs))
    randomize(layer)
    assert_is_twin(layer, linformer, inputs)


def test_how_many_matrices_there_are():
    shapes = {
        sharing: [
            tuple(weight.shape)
            for name, weight in weights_of(small(sharing)).items()
            if name.endswith("projection")
        ]
        for sharing in SHARING
    }
    assert shapes == {
        "none": [(4, 11, 6), (4, 11, 6)],
        "headwise": [(11, 6), (11, 6)],
        "key-value": [(11, 6)],
    }


@pytest.mark.parametrize("sharing", ["none", "headwise"])
def test_matrices_are_glorot_uniform_over_the_root_of_two(sharing):
    layer = LinformerAttention(
        5, 3, max_length=300, projection_dim=200, sharing=sharing
    )
    layer.build((1, None, 4))
    limit = np.sqrt(6 / (300 + 200)) / np.sqrt(2)
    drawn = np.asarray(layer.key_projection)
    assert 0.99 * limit < drawn.max() <= limit and -limit <= drawn.min()
    assert drawn.std() == pytest.approx(limit / np.sqrt(3), rel=0.02)
    both = np.ravel(drawn), np.ravel(layer.value_projection)
    assert abs(np.corrcoef(*both)[0, 1]) < 0.05


def test_padding_on_the_left_shows_the_weights_of_other_places():
    """A masked token counts as a place, and as nothing else."""
    layer, x = small(), normal((2, 5, 5), 1)
    seen = np.repeat([np.arange(8) >= 3], 2, 0)
    paddings = normal((2, 3, 5), 2), normal((2, 3, 5), 3, 1e4)
    padded, same = (
        layer(np.concatenate([padding, x], 1), key_mask=seen)[:, 3:]
        for padding in paddings
    )
    np.testing.assert_array_equal(padded, same)
    assert np.abs(padded - layer(x)).max() > 0.1
    for projection in (layer.key_projection, layer.value_projection):
        projection.assign(np.roll(projection, -3, axis=0))
    np.testing.assert_allclose(padded, layer(x), rtol=1e-12)


def test_xla_refuses_what_is_longer_by_name():
    layer, x = small(sharing="none"), normal((3, 12, 5), 1, dtype="float64")
    spec = [tf.TensorSpec((None, None, 5), "float64")]
    compiled = tf.function(layer.__call__, input_signature=spec, jit_compile=True)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="LinformerAttention_with_a"
    ):
        compiled(x)
    np.testing.assert_allclose(compiled(x[:, :7]), layer(x[:, :7]), rtol=1e-9)


def test_mixtures_are_float32_in_half_precision():
    """bfloat16 would round the weights to 1 and -1, and their sum to 0."""
    layer = LinformerAttention(
        1, 2, max_length=4096, projection_dim=3, use_bias=False, dtype="mixed_bfloat16"
    )
    x = tf.ones((1, 4096, 2), "bfloat16")
    layer.build(x.shape)
    for weight in layer.trainable_weights:
        weight.assign(tf.ones_like(weight))
    places = np.where(np.arange(4096) % 2, -1, 1 + 2**-10)
    layer.value_projection.assign(np.repeat(places[:, None], 3, 1))
    # values are 2, their mixtures 2 * 2048 / 1024, and two of these are added
    np.testing.assert_allclose(tf.cast(layer(x)[0, 0], "float32"), 8.0, rtol=0.01)
