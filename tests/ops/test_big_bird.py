"""Blocks of BigBird against a computation with sets of Python ints."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import zoo

MASK = 2**32 - 1


def scattered(x):
    """Computes the hash function "lowbias32" of an int."""
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK
    x ^= x >> 15
    x = x * 0x846CA68B & MASK
    return x ^ x >> 16


def number(seed, *indices):
    for index in indices:
        seed = scattered((seed + (index + 1) * 0x9E3779B9) & MASK)
    return (seed >> 8) / 2**24


def seen_by_hand(count, num_heads, num_global, num_random, seed, causal):
    """Returns the fixed and random blocks that a block sees, by head and block."""
    in_turn = [i // 2 if i % 2 == 0 else count - 1 - i // 2 for i in range(num_global)]
    always = set(range(num_global)) if causal else set(in_turn)
    rows = []
    for head in range(num_heads):
        rows.append([])
        for i in range(count):
            end = i + 1 if causal else count
            seen = {i - 1, i, *(always if causal else always | {i + 1})}
            seen &= set(range(end))
            drawn = []
            for k in range(num_random):
                others = sorted(set(range(end)) - seen - set(drawn))
                if others:
                    drawn.append(others[int(number(seed, head, i, k) * len(others))])
            rows[-1].append((seen, drawn))
    return rows


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "count, num_global, num_random",
    [(1, 2, 3), (2, 2, 3), (3, 5, 1), (13, 3, 4), (13, 0, 2)],
)
def test_a_table_is_what_sets_say(count, num_global, num_random, causal):
    given = count, 2, num_global, num_random, 5, causal
    blocks = zoo.big_bird_blocks(*given)
    for rows, expected in zip(blocks.table.numpy(), seen_by_hand(*given), strict=True):
        for row, (seen, drawn) in zip(rows, expected, strict=True):
            there = row[row >= 0].tolist()
            assert len(set(there)) == len(there)
            assert set(there[: len(seen)]) == seen
            assert there[len(seen) :] == drawn
    everything = {*blocks.all_seeing.numpy().tolist()}
    first = -(-num_global // 2)
    last = {count - 1 - i for i in range(num_global // 2)}
    expected = ({*range(min(first, count))} | {max(i, 0) for i in last}) - {-1}
    assert everything == (set() if causal else expected)


@pytest.mark.parametrize("causal", [False, True])
def test_a_table_is_the_same_wherever_it_runs(causal):
    def table(count, seed):
        return zoo.big_bird_blocks(count, 2, 2, 3, seed, causal).table

    expected = table(11, 7)
    int32 = tf.TensorSpec((), tf.int32)
    unknown = tf.function(table, input_signature=[int32, int32])
    np.testing.assert_array_equal(unknown(11, 7), expected)
    compiled = tf.function(lambda seed: table(11, seed), jit_compile=True)
    np.testing.assert_array_equal(compiled(7), expected)
    assert not np.array_equal(table(11, 8), expected)
    assert not np.array_equal(expected[0], expected[1])


def test_random_blocks_are_uniform():
    """Block 20 of 40 chooses among 35 others; counts each one over 400 seeds."""
    table = tf.function(lambda seed: zoo.big_bird_blocks(40, 8, 2, 3, seed).table)
    draws = np.stack([table(tf.constant(i))[:, 20, -3:] for i in range(400)])
    counts = np.bincount(draws.ravel(), minlength=40)
    seen = [0, 19, 20, 21, 39]
    assert not counts[seen].any()
    mean = draws.size / 35
    variance = draws.size * (1 / 35) * (1 - 1 / 35)
    z = (np.delete(counts, seen) - mean) / variance**0.5
    assert np.abs(z).max() < 4
    # the first of three random blocks alone, over heads and seeds
    firsts = draws[..., 0].ravel()
    assert abs(firsts.mean() - 20) < 4 * 11.6 / len(firsts) ** 0.5
    assert abs(np.corrcoef(draws[:, 0, 0], draws[:, 1, 0])[0, 1]) < 4 / 20
    assert abs(np.corrcoef(draws[1:, 0, 0], draws[:-1, 0, 0])[0, 1]) < 4 / 20


def test_blocks_of_all_lengths_are_among_the_random_ones():
    """Far blocks see the last ones of many blocks, not only the first ones."""
    table = zoo.big_bird_blocks(3000, 1, 2, 3, 0).table[0, :, -3:].numpy()
    assert table.max() > 2900
    assert abs(table.mean() - 1500) < 4 * 866 / table.size**0.5
