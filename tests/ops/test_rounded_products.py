"""Weights sum to 1 in spite of rounding in products on GPUs and TPUs.

These round the mantissa of a float32 to 10 bits (TensorFloat-32) or 7 bits (bfloat16).
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops, zoo
from keras_performer.ops.windowed import linear_attention

from .cases import normal, pairs, segment_starts

LENGTH, HEAD_DIM, WINDOW = 96, 64, 40

# Largest relative error of an operand, half a unit of its last bit.
ROUNDING = {"tensorfloat32": 2**-11, "bfloat16": 2**-8}


def rounded(x, precision):
    """Rounds float32 numbers to a precision, and returns them as float32."""
    if precision == "bfloat16":
        return tf.cast(tf.cast(x, "bfloat16"), "float32")
    bits = tf.bitcast(x, "int32")
    odd = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 13), 1)
    return tf.bitcast(tf.bitwise.bitwise_and(bits + 0xFFF + odd, ~0x1FFF), "float32")


@pytest.fixture(params=sorted(ROUNDING))
def products(request, monkeypatch):
    """Rounds operands of products, and counts products: `(half a unit, counts)`."""
    counts = {"matmul": 0, "einsum": 0}

    def operand(x):
        return x + tf.stop_gradient(rounded(x, request.param) - x)

    def rounding(name):
        product = getattr(tf, name)

        @functools.wraps(product)
        def multiply(*args, **options):
            counts[name] += 1
            args = [x if isinstance(x, str) else operand(x) for x in args]
            return product(*args, **options)

        monkeypatch.setattr(tf, name, multiply)

    for name in counts:
        rounding(name)
    return ROUNDING[request.param], counts


def attend(window, features, causal, packed, *inputs):
    starts = segment_starts(((0, 30, 31, 64),), LENGTH) if packed else None
    visible = ops.Visibility(None, causal, starts=starts)
    if not features:
        return ops.local_attention(*inputs, window, visible)[0]
    kernel = ops.ExponentialKernel(pairs(64, HEAD_DIM), hyperbolic=True)
    return linear_attention(*inputs, kernel, visible, window)[0]


def lsh(query, key, value):
    buckets = zoo.lsh_buckets(query, normal((2, 1, HEAD_DIM, 2), 4, dtype="float32"))
    return zoo.lsh_attention(query, value, buckets, WINDOW)


ATTENTIONS = {
    "local": functools.partial(attend, WINDOW, False, False, False),
    "local, causal, packed": functools.partial(attend, WINDOW, False, True, True),
    "windowed": functools.partial(attend, WINDOW, True, False, False),
    "windowed, packed": functools.partial(attend, WINDOW, True, False, True),
    "windowed, causal": functools.partial(attend, WINDOW, True, True, False),
    "lsh": lsh,
    "linear": functools.partial(attend, None, True, False, False),
    "linear, packed": functools.partial(attend, None, True, False, True),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_weights_forward_and_backward_sum_to_one(name, products):
    """With an identity as values, outputs are the weights; so are their gradients."""
    half_unit, counts = products
    # with large logits: log-sums of near keys reach about 60
    query, key = (normal((1, LENGTH, 1, HEAD_DIM), i, 4.0, "float32") for i in range(2))
    value = tf.eye(LENGTH)[tf.newaxis, :, tf.newaxis]
    with tf.GradientTape() as tape:
        tape.watch(value)
        forward = ATTENTIONS[name](query, key, value)
    before = dict(counts)
    backward = tape.gradient(forward, value, tf.eye(LENGTH)[tf.newaxis, :, tf.newaxis])
    forward, backward = forward[0, :, 0].numpy(), backward[0, :, 0].numpy().T
    for weights in forward, backward:
        assert np.abs(weights.sum(1) - 1).max() < 3 * half_unit
    assert np.abs(forward - backward).sum(1).max() < 3 * half_unit
    # both passes went through rounded products
    assert 0 < sum(before.values()) < sum(counts.values())
