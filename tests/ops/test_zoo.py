"""Operations of the zoo: random blocks, buckets, and residual layers in reverse.

`tests/layers/test_definitions.py` tests the numbers of BigBird and of LSH attention.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import zoo
from tests.layers import zoo_twins

from .cases import HEAD_DIM, normal, qkv, value_and_gradients

# -- The random blocks of BigBird.


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


# -- LSH attention.


ROTATIONS = normal((3, 3, HEAD_DIM, 2), 3, dtype="float32")


def test_buckets_are_the_largest_of_both_signs():
    x, rotations = normal((2, 40, 3, 5), 1), normal((4, 3, 5, 6), 2)
    buckets = zoo.lsh_buckets(x, rotations)
    np.testing.assert_array_equal(buckets, zoo_twins.buckets(x, rotations))
    assert len(np.unique(buckets)) == 12
    np.testing.assert_array_equal(zoo.lsh_buckets(1e4 * x, rotations), buckets)


def test_large_queries_and_queries_of_zero_are_finite():
    query, _, value = qkv(2, 20, 20, 3, std=2.0, dtype="float32")
    buckets = zoo.lsh_buckets(query, ROTATIONS)
    for scale in (0.0, 1e4):
        results = value_and_gradients(
            lambda q, v: zoo.lsh_attention(q, v, buckets, 5), [scale * query, value]
        )
        assert all(np.isfinite(x).all() for x in results)


def test_what_is_no_bucket_for_each_token_raises():
    query, _, value = qkv(2, 6, 6, 3, dtype="float32")
    buckets = zoo.lsh_buckets(query, ROTATIONS)
    for message, given in (
        ("as lsh_buckets makes them", (buckets[..., 0], 3)),
        (r"Received: buckets of shape \(2, 5, 3, 3\)", (buckets[:, :5], 3)),
        ("sliding_window must be a positive int", (buckets, 0)),
    ):
        with pytest.raises(ValueError, match=message):
            zoo.lsh_attention(query, value, *given)


# -- Residual layers that recompute inputs from outputs: when, and to the bit.


DIM = 5


def change(x, kernel, state):
    return tf.tanh(tf.matmul(x, kernel)), state


def kernels(depth, dtype="float64"):
    return [normal((DIM, DIM), (1, index), dtype=dtype) for index in range(depth)]


def test_nothing_is_computed_again_before_its_gradient_is_there():
    """Otherwise a graph would recompute all layers at once, and keep the results."""
    params = kernels(4)

    @tf.function(autograph=False)
    def step(first, second, upstream):
        graph = tf.compat.v1.get_default_graph()
        _, b, _ = zoo.reversible_chain([change] * 4, first, second, params)
        forward = set(graph.get_operations())
        gradients = tf.gradients(b, [first, second], upstream)
        again = [
            op
            for op in graph.get_operations()
            if op.type in ("Tanh", "MatMul", "BatchMatMulV2") and op not in forward
        ]
        assert len(again) >= 12 and all(waits(op, upstream.op) for op in again)
        return gradients

    step.get_concrete_function(*[tf.TensorSpec((7, 3, DIM), "float64")] * 3)


def waits(op, for_op):
    """Returns `True` if one operation needs the result of another."""
    to_do, seen = [op], set()
    while to_do:
        one = to_do.pop()
        if one is for_op:
            return True
        if one.name not in seen:
            seen.add(one.name)
            to_do += [x.op for x in one.inputs] + list(one.control_inputs)
    return False


def test_params_of_another_number_raise():
    x = normal((2, DIM), 1)
    with pytest.raises(ValueError, match="Received: 2 functions and 1 params"):
        zoo.reversible_chain([change] * 2, x, x, kernels(1))


def test_a_function_of_float32_gets_its_inputs_to_the_bit():
    """Streams in float64 subtract what was added, with errors below float32's."""
    inputs = []

    def function(x, kernel, state):
        x = tf.cast(x, "float32")
        inputs.append(x.numpy())
        return tf.cast(10.0 * tf.tanh(tf.matmul(x, kernel)), "float64"), state

    x = normal((100, DIM), 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        a, b, _ = zoo.reversible_chain([function] * 20, x, x, kernels(20, "float32"))
    tape.gradient([a, b], x)
    forward, again = inputs[:20], inputs[20:]
    for one, other in zip(forward, reversed(again), strict=True):
        np.testing.assert_array_equal(one, other)
