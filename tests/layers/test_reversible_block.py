"""`ReversibleBlock` against autodiff of the same sums, and the tensors it keeps."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import ExactAttention, LocalAttention
from keras_performer.zoo import ReformerAttention, ReversibleBlock
from tests.costs import kept_for_gradients
from tests.layers.inputs import normal, output_and_gradients


def small(depth=3, **options):
    common = dict(num_heads=2, key_dim=4, rotary=True)
    kinds = [
        lambda seed: PerformerAttention(num_random_features=6, seed=seed, **common),
        lambda seed: LocalAttention(sliding_window=3, seed=seed, **common),
        lambda seed: ReformerAttention(
            num_hashes=2, num_buckets=2, sliding_window=9, seed=seed, **common
        ),
    ]
    attention = [kinds[index % 3](index) for index in range(depth)]
    block = ReversibleBlock(attention, 16, **{"seed": 4, **options})
    block.build((None, None, 8))
    return block


def plain(block, x, mask=None, training=None, **call):
    """Computes equations 9, with autodiff."""
    first = second = x = tf.cast(x, "float64")
    for one in block.blocks:
        attended = one.attention(
            one.attention_norm(tf.cast(second, block.compute_dtype)),
            query_mask=mask,
            training=training,
            **call,
        )
        first += tf.cast(one.dropout(attended, training=training), x.dtype)
        hidden = one.feedforward_norm(tf.cast(first, block.compute_dtype))
        hidden = one.contract(one.expand(hidden))
        second += tf.cast(one.dropout(hidden, training=training), x.dtype)
    return tf.cast((first + second) / 2, block.compute_dtype)


def results(function, block, x, **call):
    given = function, [x], block.trainable_weights
    return tf.nest.flatten(output_and_gradients(*given, **call))


def assert_same(block, x, tolerance=1e-5, **call):
    got = results(block, block, x, **call)
    wanted = results(functools.partial(plain, block), block, x, **call)
    for one, other in zip(got, wanted, strict=True):
        scale = max(np.abs(other).max(), 0.1)
        np.testing.assert_allclose(one, other, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("depth", "dtype", "tolerance"),
    [(1, "float32", 1e-5), (4, "float32", 1e-5), (3, "float64", 1e-11)],
)
def test_it_is_the_sums_under_autodiff(depth, dtype, tolerance):
    block, x = small(depth, dtype=dtype), normal((2, 19, 8), 1, dtype=dtype)
    assert_same(block, x, tolerance)


def test_masks_segments_and_positions_are_those_of_the_attention():
    block, x = small(2), normal((2, 11, 8), 1)
    mask = np.ones((2, 11), bool)
    mask[0, :4] = mask[1, 7:] = False
    ids = np.array([[0] * 6 + [1] * 5] * 2)
    positions = np.array([[*range(6), *range(5)]] * 2)
    call = dict(segment_ids=ids, positions=positions)
    assert_same(block, x, mask=tf.constant(mask), **call)
    without = block(x)
    for key, value in dict(mask=tf.constant(mask), **call).items():
        assert np.abs(block(x, **{key: value}) - without).max() > 1e-4, key


def seeds_of(block):
    weights = {id(v) for v in block.weights}
    return [v for v in block.variables if id(v) not in weights]


def test_dropout_is_the_same_when_it_is_computed_again():
    block, x = small(dropout=0.4), normal((2, 19, 8), 1)
    seeds = seeds_of(block)
    before = [seed.numpy() for seed in seeds]
    got = results(block, block, x, training=True)
    after = [seed.numpy() for seed in seeds]
    for seed, value in zip(seeds, before):
        seed.assign(value)
    wanted = results(functools.partial(plain, block), block, x, training=True)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    np.testing.assert_array_equal([seed.numpy() for seed in seeds], after)
    assert np.abs(block(x, training=True) - got[0]).max() > 0.01
    assert np.abs(block(x) - block(x)).max() == 0


def test_what_is_kept_does_not_grow_with_the_depth():
    shape, kept = (2, 150, 8), []
    for depth in (1, 3):
        attention = [ExactAttention(2, 4) for _ in range(depth)]
        block = ReversibleBlock(attention, 16, dropout=0.1, seed=1)
        block.build(shape)  # new variables in the call would need a second trace
        function = functools.partial(block, training=True)
        sizes = [x.num_elements() for x in kept_for_gradients(function, [shape])]
        kept.append([size for size in sizes if size >= 2 * 150])
    # the streams at both ends, and their sums; no heads, hidden vectors or blocks
    assert kept[0] == kept[1] == [2 * 150 * 8] * 4
