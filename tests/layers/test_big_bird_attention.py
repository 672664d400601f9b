"""`BigBirdAttention` beside its definition, query by query, in NumPy."""

import keras
import numpy as np
import pytest

from keras_performer.layers import ExactAttention
from keras_performer.zoo import BigBirdAttention
from tests.contract import relative_error
from tests.layers.inputs import language_model, normal
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


@pytest.mark.parametrize(
    "length, block_size, causal",
    [(1, 2, False), (5, 2, True), (13, 1, True), (23, 3, False)],
)
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


@pytest.mark.parametrize(
    "num_global, num_random, causal", [(2, 3, True), (0, 1, False), (3, 0, False)]
)
def test_scores_and_outputs(num_global, num_random, causal):
    layer = made(
        causal=causal,
        num_key_value_heads=2,
        num_global_blocks=num_global,
        num_random_blocks=num_random,
    )
    x, seen = normal((2, 21, 7), 1), mask(21)
    output, scores = layer(x, key_mask=seen, return_attention_scores=True)
    expected = twin_of(layer)(weights_of(layer), x, seen, scores=True)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    expected = twin_of(layer)(weights_of(layer), x, seen)
    assert relative_error(output, expected) < 1e-5


@pytest.mark.parametrize("length, causal", [(64, True), (65, False), (400, True)])
def test_short_sequences_are_exact_attention(length, causal):
    """Seven default blocks are all: a middle one sees 5 and 3 more."""
    layer = BigBirdAttention(2, 3, causal=causal, use_bias=False)
    exact = ExactAttention(2, 3, causal=causal, use_bias=False)
    x, seen = normal((2, length, 7), 1), mask(length)
    for each in layer, exact:
        each.build(x.shape)
    exact.set_weights(layer.get_weights()[:4])
    got, expected = layer(x, key_mask=seen), exact(x, key_mask=seen)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_padding_on_the_right_in_the_last_block_is_as_if_it_were_not_there():
    layer = made(block_size=4)
    x = normal((2, 30, 7), 1)
    longer = np.concatenate([x, np.full((2, 2, 7), 9, "float32")], 1)
    seen = np.arange(32)[None] < 30
    got = layer(longer, key_mask=seen)[:, :30]
    np.testing.assert_allclose(got, layer(x), atol=1e-5)


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
    # so do the blocks of a model
    attention = BigBirdAttention(2, 4, causal=True, block_size=2)
    lm = language_model(11, 60, 2, 2, 8, attention=attention, seed=3)
    lm(np.zeros((1, 60), "int32"))
    one, other = (tables(block.attention) for block in lm.blocks)
    assert not np.array_equal(one, other)
