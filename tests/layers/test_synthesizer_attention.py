"""`SynthesizerAttention` beside the equations of its paper."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM
from keras_performer.layers import PerformerBlock
from keras_performer.zoo import SynthesizerAttention
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

KINDS = "dense", "random", "factorized_random"


def small(kind="dense", shapes=((2, 7, 5),), **options):
    defaults = dict(value_dim=2, max_length=11, dtype="float64")
    layer = SynthesizerAttention(4, 3, kind=kind, **{**defaults, **options})
    layer.build(*shapes)
    randomize(layer, std=1.0)
    return layer


def logit(weights, hidden, head, i, j):
    """What key j has of the query at place i, whose hidden layer has values."""
    if "alignment" in weights:
        return weights["alignment"][head, i, j]
    if "query_factor" in weights:
        return weights["query_factor"][head, i] @ weights["key_factor"][head, j]
    bias = weights["place_bias"][head, j] if "place_bias" in weights else 0.0
    return hidden @ weights["place_kernel"][head, :, j] + bias


def synthesizer(weights, query, value=None, key_mask=None, use_causal_mask=False):
    """softmax(logits of the kind) G(X), logit after logit."""
    value = query if value is None else value
    length, num_keys = query.shape[1], value.shape[1]
    hidden = np.zeros((*query.shape[:2], 4, 0))
    if "place_kernel" in weights:
        hidden = np.maximum(heads(weights, "query", query), 0)
    v = heads(weights, "value", value)
    attended = np.zeros((*query.shape[:2], 4, v.shape[3]))
    for b, n in np.ndindex(query.shape[0], 4):
        logits = [
            [logit(weights, hidden[b, i, n], n, i, j) for j in range(num_keys)]
            for i in range(length)
        ]
        seen = np.tri(length, num_keys) if use_causal_mask else np.ones((length, 1))
        seen = seen * (np.ones(num_keys) if key_mask is None else key_mask[b])
        of_head = v[b, :, n // (4 // v.shape[2])]
        attended[b, :, n] = softmax(np.array(logits), seen > 0) @ of_head
    return written(weights, attended)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use_causal_mask", [False, True])
def test_it_is_the_equation(kind, use_causal_mask):
    layer = small(kind, num_key_value_heads=2)
    seen = np.ones((2, 7), bool)
    seen[0, 4:] = seen[1, :2] = False
    call = dict(key_mask=seen, use_causal_mask=use_causal_mask)
    assert_is_twin(layer, synthesizer, [normal((2, 7, 5), 1)], **call)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 11])
def test_it_is_the_equation_at_any_length_up_to_the_longest(kind, length):
    layer = small(kind, use_bias=False)
    assert_is_twin(layer, synthesizer, [normal((3, length, 5), 1)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(3, 7), (7, 3)])
def test_keys_may_be_of_another_sequence(kind, lengths):
    inputs = [normal((2, n, width), n) for n, width in zip(lengths, (5, 6))]
    layer = small(kind, [x.shape for x in inputs])
    assert_is_twin(layer, synthesizer, inputs)


def test_only_what_is_used_is_there():
    own = {"dense": {"query/kernel", "query/bias", "place_kernel", "place_bias"}}
    own["random"], own["factorized_random"] = {"alignment"}, {"query_factor"}
    own["factorized_random"] |= {"key_factor"}
    common = {"value/kernel", "value/bias"}
    common |= {"attention_output/kernel", "attention_output/bias"}
    for kind in KINDS:
        assert set(weights_of(small(kind))) == own[kind] | common
    assert small("factorized_random").query_factor.shape == (4, 11, 8)
    no_bias = weights_of(small(use_bias=False))
    assert set(no_bias) == {
        name for name in own["dense"] | common if "bias" not in name
    }


@pytest.mark.parametrize(
    "kind, name, sizes",
    [
        ("dense", "place_kernel", (150, 200)),
        ("random", "alignment", (200, 200)),
        ("factorized_random", "key_factor", (200, 8)),
    ],
)
def test_weights_are_glorot_uniform_in_each_head(kind, name, sizes):
    layer = SynthesizerAttention(5, 150, max_length=200, kind=kind)
    layer.build((1, None, 4))
    drawn = np.asarray(getattr(layer, name))
    limit = np.sqrt(6 / sum(sizes))
    assert drawn.shape == (5, *sizes)
    assert 0.99 * limit < drawn.max() <= limit and -limit <= drawn.min()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_right_is_not_there(kind):
    layer, x, rest = small(kind), normal((2, 5, 5), 1), normal((2, 3, 5), 2, 1e4)
    seen = np.repeat([np.arange(8) < 5], 2, 0)
    padded = layer(np.concatenate([x, rest], 1), key_mask=seen)
    np.testing.assert_allclose(padded[:, :5], layer(x), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_on_the_left_shows_the_weights_of_other_places(kind):
    """What is masked counts as a place, and as nothing else."""
    layer, x = small(kind), normal((2, 5, 5), 1)
    seen = np.repeat([np.arange(8) >= 3], 2, 0)
    paddings = normal((2, 3, 5), 2), normal((2, 3, 5), 3, 1e4)
    padded, same = (
        layer(np.concatenate([padding, x], 1), key_mask=seen)[:, 3:]
        for padding in paddings
    )
    np.testing.assert_array_equal(padded, same)
    assert np.abs(padded - layer(x)).max() > 0.1
    axes = {"alignment": (1, 2), "query_factor": 1, "key_factor": 1}
    axes |= {"place_kernel": 2, "place_bias": 1}
    for weight in layer.trainable_weights:
        if weight.name in axes:
            weight.assign(np.roll(weight, -3, axes[weight.name]))
    np.testing.assert_allclose(padded, layer(x), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_future_does_not_move_the_past(kind):
    layer = small(kind, causal=True, dtype="float32")
    x = normal((2, 7, 5), 1)
    later = np.concatenate([x[:, :4], normal((2, 3, 5), 2, 1e4)], 1)
    np.testing.assert_array_equal(layer(later)[:, :4], layer(x)[:, :4])
    assert np.abs(layer(later) - layer(x))[:, 4:].max() > 1


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_keys_are_the_bias_and_hidden_ones_move_nothing(kind):
    layer = small(kind, causal=True)
    x = tf.constant(normal((2, 7, 5), 1, dtype="float64"))
    seen = np.ones((2, 7), bool)
    seen[0, :2], seen[1] = False, False
    with tf.GradientTape() as tape:
        tape.watch(x)
        output, scores = layer(x, key_mask=seen, return_attention_scores=True)
        loss = tf.reduce_sum(output[1] ** 2)
    bias = np.broadcast_to(layer.output_dense.bias, (7, 5))
    np.testing.assert_allclose(output[1], bias, rtol=1e-12)
    np.testing.assert_allclose(output[0, :2], bias[:2], rtol=1e-12)
    assert not np.any(scores[1]) and not np.any(scores[0, ..., :2])
    assert not np.any(tape.gradient(loss, x))


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_weights_of_values(kind):
    layer, x = small(kind, causal=True), normal((2, 7, 5), 1)
    seen = np.ones((2, 7), bool)
    seen[1, 0] = False
    output, scores = layer(x, key_mask=seen, return_attention_scores=True)
    weights = weights_of(layer)
    attended = np.einsum("bnts,bsnv->btnv", scores, heads(weights, "value", x))
    np.testing.assert_allclose(output, written(weights, attended), rtol=1e-9)
    assert not np.any(np.triu(scores, 1))
    sums = np.ones((2, 4, 7))
    sums[1, :, 0] = 0
    np.testing.assert_allclose(np.sum(scores, -1), sums, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_may_be_unknown(kind):
    layer, x = small(kind), normal((3, 7, 5), 1, dtype="float64")
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
    xla = tf.function(
        layer.__call__,
        input_signature=[tf.TensorSpec((None, None, 5), "float64")],
        jit_compile=True,
    )
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="make_SynthesizerAttentio"
    ):
        xla(longer[0])


@pytest.mark.parametrize("kind", ["random", "factorized_random"])
def test_files_of_keras_attention_are_loaded(kind):
    def model(attention, *inputs):
        return keras.Model(inputs[0], attention(*inputs))

    x = keras.Input((None, 5))
    exact = model(keras.layers.MultiHeadAttention(2, 3, name="attention"), x, x)
    exact.save_weights("exact.weights.h5")
    layer = SynthesizerAttention(2, 3, max_length=11, kind=kind, name="attention")
    model(layer, x).load_weights("exact.weights.h5")
    loaded, given = weights_of(layer), weights_of(exact.layers[-1])
    for name in ("value/kernel", "attention_output/kernel"):
        np.testing.assert_array_equal(loaded[name], given[name])


def test_the_largest_tensor_is_the_matrix_of_weights():
    layers = [SynthesizerAttention(2, 4, max_length=256, kind=kind) for kind in KINDS]
    sizes = [costs.largest_tensor(layer, (3, 256, 8)) for layer in layers]
    # weights alone do not differ between sequences
    assert sizes == [3 * 2 * 256**2, 2 * 256**2, 2 * 256**2]
    assert SynthesizerAttention.cost == "L^2"


@pytest.mark.parametrize(
    "message, options",
    [
        ("max_length must be a positive int", dict(max_length=0)),
        ("max_length must be a positive int", dict(max_length=None)),
        ('"dense", "random" or "factorized_random"', dict(kind="factorized_dense")),
        ("rank must be a positive int", dict(kind="factorized_random", rank=0)),
        ('rank is that of kind="factorized_random"', dict(rank=8)),
        ("no queries and keys to rotate", dict(rotary=True)),
        ("no queries and keys to normalize", dict(kind="random", qk_norm=True)),
    ],
)
def test_what_cannot_be_is_refused(message, options):
    with pytest.raises(ValueError, match=message):
        SynthesizerAttention(2, 4, **{"max_length": 11, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_cannot_be_are_refused(kind):
    layer = SynthesizerAttention(2, 3, max_length=11, kind=kind)
    message = "longer than max_length=11, of 12 tokens"
    with pytest.raises(ValueError, match=message):
        layer(normal((2, 12, 5), 1))
    x = normal((2, 7, 5), 1)
    if kind == "dense":  # a token has weights wherever it is
        assert layer(normal((2, 12, 5), 1), x).shape == (2, 12, 5)
    else:
        with pytest.raises(ValueError, match=message):
            layer(normal((2, 12, 5), 1), x)
    with pytest.raises(ValueError, match="segment"):
        layer(x, segment_ids=np.zeros((2, 7), int))
    with pytest.raises(ValueError, match="has no state"):
        layer(x, return_state=True, use_causal_mask=True)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_models_take_it(kind):
    attention = SynthesizerAttention(2, 4, max_length=16, kind=kind, causal=True)
    block = keras.Sequential([keras.Input((None, 8)), PerformerBlock(attention, 11)])
    x = normal((2, 7, 8), 1)
    block.compile("sgd", "mse", run_eagerly=True)
    assert block.train_on_batch(x, -x) > block.train_on_batch(x, -x)

    model = PerformerLM(
        11, max_length=16, num_layers=2, num_heads=2, hidden_dim=8, attention=attention
    )
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", cross_entropy, run_eagerly=True)
    ids = np.random.default_rng(0).integers(0, 11, (2, 13))
    assert model.train_on_batch(ids, ids) > model.train_on_batch(ids, ids)
    assert all(block.attention.kind == kind for block in model.blocks)
