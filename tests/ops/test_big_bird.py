"""Random blocks of BigBird; layers/test_definitions.py tests what blocks see."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import zoo


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
