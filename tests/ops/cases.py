"""Inputs, kernels and measures that the tests of `ops` share."""

import numpy as np
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import state as states

HEAD_DIM = 5


def normal(shape, seed, std=1.0, dtype="float64"):
    values = np.random.default_rng(seed).standard_normal(shape)
    return tf.constant(std * values, dtype)


def qkv(batch, queries, keys, heads, groups=1, std=1.0, dtype="float64", seed=0):
    """Returns query, key, value: head size 5, value size 7, `heads` key heads."""
    return (
        normal((batch, queries, heads * groups, HEAD_DIM), (seed, 1), std, dtype),
        normal((batch, keys, heads, HEAD_DIM), (seed, 2), std, dtype),
        normal((batch, keys, heads, 7), (seed, 3), 1.0, dtype),
    )


def pairs(num_rows, num_cols, seed=0):
    """Returns a hyperbolic matrix: the second half of the rows is minus the first."""
    sizes = num_rows // 2, num_cols
    half = ops.orthogonal_gaussian_matrix(*sizes, (seed, 1), regularized=True)
    return tf.concat([half, -half], axis=0)


def softmax_kernel(num_features=22, head_dim=HEAD_DIM):
    """Returns the default feature map's kernel: hyperbolic, regularized, orthogonal."""
    return ops.ExponentialKernel(pairs(num_features, head_dim), hyperbolic=True)


def favor_plus_kernel(num_features=17, head_dim=HEAD_DIM):
    matrix = ops.orthogonal_gaussian_matrix(num_features, head_dim, (0, 2))
    return ops.ExponentialKernel(matrix)


def weighted_kernel(num_features=17, hyperbolic=False):
    matrix = ops.gaussian_matrix(num_features, HEAD_DIM, (0, 3))
    if hyperbolic:
        matrix = pairs(num_features, HEAD_DIM)
    log_weights = normal((num_features,), seed=4, dtype="float32")
    return ops.ExponentialKernel(matrix, hyperbolic, log_weights)


def activation_kernel(activation, epsilon=1e-3, projected=True):
    """Returns a kernel; `epsilon` keeps features positive if activations are not."""
    matrix = ops.gaussian_matrix(17, HEAD_DIM, (0, 5)) if projected else None
    return ops.ActivationKernel(matrix, activation, epsilon)


# Kernels with different code; `tests/feature_maps` tests all activations.
KERNELS = {
    "softmax": softmax_kernel,
    "favor+": favor_plus_kernel,
    "log_weights": weighted_kernel,
    "hyperbolic_log_weights": lambda: weighted_kernel(22, hyperbolic=True),
    "taylor": ops.TaylorKernel,
    "relu": lambda: activation_kernel(tf.nn.relu, epsilon=0.1),
    "unprojected": lambda: activation_kernel(tf.nn.sigmoid, projected=False),
    "elu_plus_one": ops.EluKernel,
}


# Ways to attend, each with several blocks, chunks or pieces.
def attend_to_all(query, key, value, kernel, mask=None):
    kernel = kernel.astype(query.dtype)
    mask = None if mask is None else tf.convert_to_tensor(mask)
    state = states.absorb(kernel, key, value, mask, block_tokens=8)
    return states.answer(kernel, query, state, block_tokens=8)


def attend_to_past(query, key, value, kernel, mask=None, chunk_size=3):
    options = {"chunk_size": chunk_size}
    return ops.causal_attention(query, key, value, kernel, mask, **options)[0]


def absorb_and_answer(query, key, value, kernel, mask=None, pieces=(1, 7, -1)):
    """Absorbs keys in pieces, and answers queries in two pieces."""
    sizes = kernel.num_features(key.shape[3]), value.shape[3]
    dtype = "float64" if key.dtype == "float64" else "float32"
    state = ops.initial_state(key.shape[0], key.shape[2], *sizes, dtype)
    seen = [None] * len(pieces) if mask is None else tf.split(mask, pieces, 1)
    for k, v, m in zip(*(tf.split(x, pieces, 1) for x in (key, value)), seen):
        state = ops.absorb_keys(k, v, kernel, m, state)
    queries = query[:, :4], query[:, 4:]
    return tf.concat([ops.answer_queries(q, kernel, state) for q in queries], 1)


def token_by_token(query, key, value, kernel, mask=None):
    outputs, state = [], None
    for t in range(query.shape[1]):
        given = (x[:, t : t + 1] for x in (query, key, value))
        seen = None if mask is None else mask[:, t : t + 1]
        output, state = ops.causal_attention(*given, kernel, seen, state)
        outputs.append(output)
    return tf.concat(outputs, 1)


# Functions, each with `True` if it is causal.
ATTENTIONS = {
    "all": (attend_to_all, False),
    "past": (attend_to_past, True),
    "states": (absorb_and_answer, False),
    "tokens": (token_by_token, True),
}


def masks(length):
    """Returns key masks for batches of 3, by name; the last example sees no key."""
    position = np.arange(length)
    third = max(length // 3, 1)
    left, right = position >= third, position < length - third
    interior = (position < third) | (position >= 2 * third)
    scattered = position % 3 != 0
    none = np.zeros(length, bool)
    return {
        "left": np.stack([left, left, none]),
        "right": np.stack([right, right, none]),
        "interior": np.stack([interior, interior, none]),
        "different": np.stack([left & scattered, right & ~scattered, none]),
    }


def segment_ids(firsts, length):
    """Returns segment ids of each example, whose segments begin at `firsts`.

    Ids repeat after three segments.
    """
    starts = [[t in first for t in range(length)] for first in firsts]
    return np.cumsum(starts, axis=1, dtype="int32") % 3


def segment_starts(firsts, length):
    return ops.segment_starts(segment_ids(firsts, length))


def value_and_gradients(function, inputs):
    """Returns the output, and gradients of a random linear function of it."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = function(*inputs)
        weights = normal(output.shape, 99, dtype=output.dtype)
        loss = tf.reduce_sum(output * weights)
    return [output, *tape.gradient(loss, list(inputs))]


def relative_error(actual, expected):
    """Returns the Frobenius norm of the difference over the expected norm, in float64.

    The expected norm counts as at least 0.1, so a gradient that should vanish is
    compared absolutely. Inputs must be of order 1.
    """
    actual, expected = np.asarray(actual, "float64"), np.asarray(expected, "float64")
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    return np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), 0.1)


def assert_all_close(actual, expected, tolerance):
    """Asserts that tensors of two lists have small relative errors, pair by pair."""
    errors = [relative_error(a, e) for a, e in zip(actual, expected, strict=True)]
    assert max(errors) < tolerance, errors


def assert_equals(ours, reference, inputs, tolerance=1e-10):
    """Asserts outputs and gradients like the reference's in float64; returns them."""
    found = value_and_gradients(ours, inputs)
    expected = value_and_gradients(reference, float64(*inputs))
    assert_all_close(found, expected, tolerance)
    return found


def float64(*tensors):
    return [tf.cast(x, "float64") for x in tensors]
