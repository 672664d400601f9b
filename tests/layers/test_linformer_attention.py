"""`LinformerAttention` beside equation 7 of its paper."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM
from keras_performer.layers import PerformerBlock
from keras_performer.zoo import LinformerAttention
from tests.layers import costs
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


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("num_key_value_heads", [4, 2])
def test_it_is_the_equation(sharing, num_key_value_heads):
    layer = small(sharing, num_key_value_heads=num_key_value_heads)
    seen = np.ones((2, 7), bool)
    seen[0, 4:] = seen[1, 1] = False
    assert_is_twin(layer, linformer, [normal((2, 7, 5), 1)], key_mask=seen)


@pytest.mark.parametrize("length", [1, 7, 11])
def test_it_is_the_equation_at_any_length_up_to_the_longest(length):
    assert_is_twin(small("none"), linformer, [normal((3, length, 5), 1)])


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


@pytest.mark.parametrize("sharing", SHARING)
def test_matrices_are_glorot_uniform_over_the_root_of_two(sharing):
    layer = LinformerAttention(
        5, 3, max_length=300, projection_dim=200, sharing=sharing
    )
    layer.build((1, None, 4))
    limit = np.sqrt(6 / (300 + 200)) / np.sqrt(2)
    drawn = np.asarray(layer.key_projection)
    assert 0.99 * limit < drawn.max() <= limit and -limit <= drawn.min()
    assert drawn.std() == pytest.approx(limit / np.sqrt(3), rel=0.02)
    if sharing != "key-value":
        both = np.ravel(drawn), np.ravel(layer.value_projection)
        assert abs(np.corrcoef(*both)[0, 1]) < 0.05


@pytest.mark.parametrize("sharing", SHARING)
def test_padding_on_the_right_is_not_there(sharing):
    layer, x, rest = small(sharing), normal((2, 5, 5), 1), normal((2, 3, 5), 2, 1e4)
    seen = np.arange(8) < 5
    padded = layer(np.concatenate([x, rest], 1), key_mask=seen[None].repeat(2, 0))
    np.testing.assert_allclose(padded[:, :5], layer(x), rtol=1e-12)


def test_padding_on_the_left_shows_the_weights_of_other_places():
    """What is masked counts as a place, and as nothing else."""
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


def test_rows_without_keys_are_the_bias_and_hidden_ones_move_nothing():
    layer = small()
    x = tf.constant(normal((2, 7, 5), 1, dtype="float64"))
    seen = np.ones((2, 7), bool)
    seen[0, 2], seen[1] = False, False
    with tf.GradientTape() as tape:
        tape.watch(x)
        output, scores = layer(x, key_mask=seen, return_attention_scores=True)
        loss = tf.reduce_sum(output[1] ** 2)
    bias = np.broadcast_to(layer.output_dense.bias, (7, 5))
    np.testing.assert_allclose(output[1], bias, rtol=1e-12)
    assert not np.any(scores[1]) and not np.any(scores[0, ..., 2])
    assert not np.any(tape.gradient(loss, x))


@pytest.mark.parametrize("sharing", SHARING)
def test_scores_times_values_are_what_is_attended(sharing):
    layer, x = small(sharing, num_key_value_heads=2), normal((2, 7, 5), 1)
    seen = np.ones((2, 7), bool)
    seen[0, 4:] = False
    output, scores = layer(x, key_mask=seen, return_attention_scores=True)
    weights = weights_of(layer)
    value = np.repeat(heads(weights, "value", x), 2, 2)
    attended = np.einsum("bnts,bsnv->btnv", scores, value)
    np.testing.assert_allclose(output, written(weights, attended), rtol=1e-9)


def test_lengths_may_be_unknown():
    layer, x = small(), normal((3, 7, 5), 1, dtype="float64")
    seen = np.arange(7) < [[7], [4], [2]]
    unknown = tf.function(
        lambda x, seen: layer(x, key_mask=seen),
        input_signature=[
            tf.TensorSpec((None, None, 5), "float64"),
            tf.TensorSpec((None, None), "bool"),
        ],
    )
    np.testing.assert_allclose(unknown(x, seen), layer(x, key_mask=seen), rtol=1e-12)
    longer = np.zeros((1, 12, 5)), np.ones((1, 12), bool)
    message = "longer than max_length=11"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        unknown(*longer)


@pytest.mark.parametrize("sharing", ["none", "headwise"])
def test_xla_refuses_what_is_longer_by_name(sharing):
    layer, x = small(sharing=sharing), normal((3, 12, 5), 1, dtype="float64")
    spec = [tf.TensorSpec((None, None, 5), "float64")]
    compiled = tf.function(layer.__call__, input_signature=spec, jit_compile=True)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="LinformerAttention_with_a"
    ):
        compiled(x)
    np.testing.assert_allclose(compiled(x[:, :7]), layer(x[:, :7]), rtol=1e-9)


def test_masks_of_an_embedding_are_heeded():
    tokens = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(9, 5, mask_zero=True)(tokens)
    layer = LinformerAttention(2, 3, max_length=11, projection_dim=6)
    model = keras.Model(tokens, layer(embedded))
    short = np.array([[3, 5, 2]])
    padded = np.pad(short, [(0, 0), (0, 4)])
    np.testing.assert_allclose(model(padded)[:, :3], model(short), rtol=1e-5)


def test_weights_of_keras_attention_are_loaded():
    def model(attention, *inputs):
        return keras.Model(inputs[0], attention(*inputs))

    x = keras.Input((None, 5))
    exact = model(keras.layers.MultiHeadAttention(2, 3, name="attention"), x, x)
    exact.save_weights("exact.weights.h5")
    layer = LinformerAttention(2, 3, max_length=11, name="attention")
    linformer = model(layer, x)
    drawn = np.array(layer.key_projection)
    linformer.load_weights("exact.weights.h5")
    np.testing.assert_array_equal(layer.key_projection, drawn)
    loaded = weights_of(layer)
    for name, weight in weights_of(exact.layers[-1]).items():
        np.testing.assert_array_equal(loaded[name], weight)


@pytest.mark.parametrize("sharing", ["none", "headwise"])
def test_the_largest_tensor_grows_as_the_length(sharing):
    def largest(length):
        layer = LinformerAttention(
            2, 4, max_length=1024, projection_dim=8, sharing=sharing
        )
        return costs.largest_tensor(layer, (3, length, 8))

    assert largest(1024) <= 4 * largest(256)


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


@pytest.mark.parametrize(
    "message, options",
    [
        ("max_length must be a positive int", dict(max_length=0)),
        ("max_length must be a positive int", dict(max_length=None)),
        ("projection_dim must be a positive int", dict(projection_dim=2.5)),
        ('"none", "headwise" or "key-value".*layerwise', dict(sharing="layerwise")),
        ("cannot hide later tokens", dict(causal=True)),
    ],
)
def test_what_cannot_be_is_refused(message, options):
    with pytest.raises(ValueError, match=message):
        LinformerAttention(2, 3, **{"max_length": 11, **options})


def test_calls_that_cannot_be_are_refused():
    layer = LinformerAttention(2, 3, max_length=11)
    with pytest.raises(ValueError, match="longer than max_length=11, of 12 tokens"):
        layer(normal((2, 12, 5), 1))
    x = normal((2, 7, 5), 1)
    with pytest.raises(ValueError, match="cannot hide later tokens"):
        layer(x, use_causal_mask=True)
    with pytest.raises(ValueError, match="segment"):
        layer(x, segment_ids=np.zeros((2, 7), int))
    with pytest.raises(ValueError, match="has no state"):
        layer(x, return_state=True)


def test_blocks_and_models_take_it():
    attention = LinformerAttention(2, 4, max_length=16, projection_dim=5)
    block = PerformerBlock(attention, 11)
    block_model = keras.Sequential([keras.Input((None, 8)), block])
    x = normal((2, 7, 8), 1)
    block_model.compile("sgd", "mse", run_eagerly=True)
    assert block_model.train_on_batch(x, -x) > block_model.train_on_batch(x, -x)

    model = PerformerLM(
        11,
        max_length=16,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        attention=attention,
        causal=False,
    )
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", cross_entropy, run_eagerly=True)
    ids = np.random.default_rng(0).integers(0, 11, (2, 13))
    before = [np.array(block.attention.key_projection) for block in model.blocks]
    assert model.train_on_batch(ids, ids) > model.train_on_batch(ids, ids)
    for block, old in zip(model.blocks, before):
        assert block.attention.max_length == 16
        assert np.abs(block.attention.key_projection - old).max() > 1e-4
    with pytest.raises(ValueError, match="recompute.*needs"):
        options = dict(attention=attention, causal=False, recompute="block")
        PerformerLM(
            11, max_length=16, num_layers=2, num_heads=2, hidden_dim=8, **options
        )
