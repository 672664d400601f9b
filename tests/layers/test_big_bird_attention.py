"""`BigBirdAttention` beside its definition, query by query, in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerLM
from keras_performer.layers import ExactAttention, PerformerBlock
from keras_performer.zoo import BigBirdAttention
from tests.contract import relative_error
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
from tests.ops.test_big_bird import seen_by_hand


def made(num_heads=4, key_dim=3, random=True, **options):
    options = dict(seed=5, block_size=2, num_random_blocks=1) | options
    layer = BigBirdAttention(num_heads, key_dim, **options)
    layer.build((2, None, 7))
    if random:
        randomize(layer)
    return layer


def twin_of(layer):
    """The output of a layer, as `tests.layers.twins` takes it."""

    def output(weights, x, key_mask=None, scores=False):
        batch, length, _ = x.shape
        visible = np.ones((batch, length), bool) if key_mask is None else key_mask
        size, causal = layer.block_size, layer.causal
        count = -(-length // size)
        num_global = layer.num_global_blocks
        given = num_global, layer.num_random_blocks, layer.seed, causal
        seen = seen_by_hand(count, layer.num_key_value_heads, *given)
        in_turn = [0, count - 1, 1, count - 2][:num_global]
        query, key, value = (heads(weights, n, x) for n in ("query", "key", "value"))
        group = layer.num_heads // layer.num_key_value_heads
        attended = np.zeros((batch, length, layer.num_heads, layer.value_dim))
        matrix = np.zeros((batch, layer.num_heads, length, length))
        for b in range(batch):
            for n in range(layer.num_heads):
                for i in range(length):
                    always, drawn = seen[n // group][i // size]
                    sees = [
                        visible[b, j]
                        and (j <= i or not causal)
                        and (
                            j // size in always
                            or j // size in drawn
                            or (i // size in in_turn and not causal)
                        )
                        for j in range(length)
                    ]
                    logits = key[b, :, n // group] @ query[b, i, n]
                    row = softmax(logits / layer.key_dim**0.5, sees)
                    matrix[b, n, i] = row
                    attended[b, i, n] = row @ value[b, :, n // group]
        return matrix if scores else written(weights, attended)

    return output


def mask(length, seed=0):
    """Holes, and in the second row padding on the left."""
    seen = np.random.default_rng(seed).random((2, length)) < 0.7
    seen[1, : length // 3] = False
    return seen


# -- What it computes.


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length, block_size", [(1, 2), (5, 2), (13, 1), (23, 3)])
def test_it_is_its_definition_with_all_gradients(length, block_size, causal):
    layer = made(
        block_size=block_size,
        causal=causal,
        num_key_value_heads=2,
        value_dim=5,
        dtype="float64",
    )
    x = normal((2, length, 7), 1)
    assert_is_twin(layer, twin_of(layer), [x], key_mask=mask(length))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_global, num_random", [(2, 3), (0, 1), (3, 0)])
def test_scores_and_outputs(num_global, num_random, causal):
    layer = made(
        causal=causal,
        num_key_value_heads=2,
        num_global_blocks=num_global,
        num_random_blocks=num_random,
    )
    x = normal((2, 29, 7), 1)
    for call in ({}, {"key_mask": mask(29)}):
        output, scores = layer(x, return_attention_scores=True, **call)
        expected = twin_of(layer)(weights_of(layer), x, scores=True, **call)
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        expected = twin_of(layer)(weights_of(layer), x, **call)
        assert relative_error(output, expected) < 1e-5


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 400])
def test_short_sequences_are_exact_attention(length, causal):
    """Of the default blocks 7 are all, of which a middle one sees 5 and 3 more."""
    layer = BigBirdAttention(2, 3, causal=causal, use_bias=False)
    exact = ExactAttention(2, 3, causal=causal, use_bias=False)
    x, seen = normal((2, length, 7), 1), mask(length)
    for each in layer, exact:
        each.build(x.shape)
    exact.set_weights(layer.get_weights()[:4])
    got, expected = layer(x, key_mask=seen), exact(x, key_mask=seen)
    np.testing.assert_allclose(got, expected, atol=1e-5)


# -- What it must not see.


def test_later_tokens_move_nothing():
    layer = made(block_size=4, num_random_blocks=3, causal=True)
    x, later = normal((1, 90, 7), 1), np.arange(90)[None] >= 50
    huge = np.where(later[..., None], 1e4, x)
    before, after = layer(x), layer(huge)
    np.testing.assert_array_equal(before[:, :50], after[:, :50])
    assert relative_error(after[:, 50:], before[:, 50:]) > 1


@pytest.mark.parametrize("causal", [False, True])
def test_hidden_keys_move_nothing(causal):
    layer = made(causal=causal, num_random_blocks=3)
    x, seen = normal((2, 31, 7), 1), mask(31)
    huge = np.where(seen[..., None], x, 1e4).astype("float32")
    before, after = (layer(z, key_mask=seen) for z in (x, huge))
    np.testing.assert_array_equal(before[seen], after[seen])


def test_padding_on_the_right_in_the_last_block_is_as_if_it_were_not_there():
    layer = made(block_size=4)
    x = normal((2, 30, 7), 1)
    longer = np.concatenate([x, np.full((2, 2, 7), 9, "float32")], 1)
    seen = np.arange(32)[None] < 30
    got = layer(longer, key_mask=seen)[:, :30]
    np.testing.assert_allclose(got, layer(x), atol=1e-5)


def test_rows_that_see_nothing_are_0():
    layer = made(use_bias=False)
    x, seen = normal((2, 19, 7), 1), np.ones((2, 19), bool)
    seen[1] = False
    with tf.GradientTape() as tape:
        tensor = tf.constant(x)
        tape.watch(tensor)
        output = layer(tensor, key_mask=seen)
    assert not output[1].numpy().any() and output[0].numpy().all()
    assert np.isfinite(tape.gradient(output, tensor)).all()


# -- The random blocks.


def tables(layer, length=60):
    return layer.seen_blocks(length, False).table.numpy()


def test_random_blocks_are_the_layers_own_and_stay():
    keras.utils.set_random_seed(1)
    one, other = (made(seed=None) for _ in range(2))
    assert not np.array_equal(tables(one), tables(other))
    keras.utils.set_random_seed(1)
    np.testing.assert_array_equal(tables(made(seed=None)), tables(one))
    np.testing.assert_array_equal(tables(made(seed=3)), tables(made(seed=3)))
    x = normal((2, 60, 7), 1)
    np.testing.assert_array_equal(one(x, training=True), one(x))
    other.set_weights(one.get_weights())
    np.testing.assert_array_equal(other(x), one(x))


def test_a_file_of_other_attention_leaves_them():
    def model(attention):
        return keras.Sequential([keras.Input((None, 7)), attention])

    source = model(ExactAttention(2, 3, name="a"))
    randomize(source)
    source.save_weights("exact.weights.h5")
    layer = BigBirdAttention(2, 3, name="a")
    target = model(layer)
    before = int(layer.random_blocks_seed.numpy())
    target.load_weights("exact.weights.h5")
    x = normal((2, 100, 7), 1)  # short: it is exact
    np.testing.assert_allclose(target(x), source(x), atol=1e-5)
    assert int(layer.random_blocks_seed.numpy()) == before


def test_blocks_of_a_model_differ():
    attention = BigBirdAttention(2, 4, causal=True, block_size=2)
    lm = PerformerLM(
        11,
        max_length=60,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        attention=attention,
        seed=3,
    )
    lm(np.zeros((1, 60), "int32"))
    one, other = (tables(block.attention) for block in lm.blocks)
    assert not np.array_equal(one, other)


# -- Where it runs.


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_unknown_shapes_and_xla(causal):
    layer = made(causal=causal)
    inputs = tf.constant(normal((2, 23, 7), 1)), tf.constant(mask(23))

    def call(x, seen):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, key_mask=seen)
            loss = tf.reduce_sum(output**2)
        return output, tape.gradient(loss, x)

    specs = [tf.TensorSpec((None, None, *z.shape[2:]), z.dtype) for z in inputs]
    unknown = tf.function(call, input_signature=specs)
    compiled = tf.function(call, jit_compile=True)
    for got, right in zip(unknown(*inputs), call(*inputs)):
        assert relative_error(got, right) < 1e-5
    for got, right in zip(compiled(*inputs), call(*inputs)):
        assert relative_error(got, right) < 1e-5
    one = [z[:, :1] for z in inputs]
    assert relative_error(unknown(*one)[0], call(*one)[0]) < 1e-6


def test_memory_is_linear():
    def largest(length):
        layer = BigBirdAttention(2, 3, block_size=8)
        return costs.largest_tensor(layer, (3, length, 8))

    assert largest(2048) <= 4 * largest(512)


@pytest.mark.slow
def test_a_block_and_a_model_train():
    x = normal((2, 29, 8), 1)
    block = PerformerBlock(BigBirdAttention(2, 4, block_size=2, use_bias=False), 16)
    attention = BigBirdAttention(2, 4, block_size=2, use_bias=False, causal=True)
    lm = PerformerLM(
        11, max_length=29, num_layers=1, num_heads=2, hidden_dim=8, attention=attention
    )
    tokens = np.arange(58).reshape(2, 29) % 11
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    cases = [
        (keras.Sequential([keras.Input((None, 8)), block]), x, x, "mse"),
        (lm, tokens, tokens, cross_entropy),
    ]
    for model, inputs, targets, loss in cases:
        model(inputs)
        before = [np.asarray(w) for w in model.trainable_weights]
        model.compile(keras.optimizers.SGD(1.0), loss, run_eagerly=True)
        assert np.isfinite(model.train_on_batch(inputs, targets))
        for weight, old in zip(model.trainable_weights, before):
            assert not np.array_equal(weight, old), weight.path


# -- What it refuses.


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(block_size=0), "block_size must be a positive int"),
        (dict(block_size=None), "block_size must be a positive int"),
        (dict(num_global_blocks=-1), "num_global_blocks must be an int, 0 or more"),
        (dict(num_random_blocks=1.5), "num_random_blocks must be an int, 0 or more"),
    ],
)
def test_wrong_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        BigBirdAttention(2, 4, **options)


@pytest.mark.parametrize(
    "call, message",
    [
        (dict(value=normal((2, 6, 7))), "one key for each query"),
        (dict(segment_ids=np.zeros((2, 5), int)), "cannot keep segments"),
        (dict(return_state=True), "has no state"),
    ],
)
def test_what_it_cannot_do_is_said(call, message):
    with pytest.raises(ValueError, match=message):
        BigBirdAttention(2, 4)(normal((2, 5, 7)), **call)
