"""The slow reference itself, against cases by hand."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from tests.ops import reference


def column(*numbers):
    """Returns numbers as a sequence `(1, len(numbers), 1, 1)`, head size 1."""
    return tf.constant(numbers, tf.float64)[None, :, None, None]


def test_softmax_kernel_on_paper():
    """H = 1, rows w = 1 and w = -1: the weights are cosh(q + k) exp(-k^2 / 2)."""
    kernel = ops.ExponentialKernel([[1.0], [-1.0]])
    weights = np.array([np.cosh(1.0), np.cosh(1.0 + 2.0) * np.exp(-2.0)])
    weights /= weights.sum()
    query, key, value = column(1.0), column(0.0, 2.0), column(10.0, 20.0)
    output = reference.attention(query, key, value, kernel)
    np.testing.assert_allclose(output[0, 0, 0], [weights @ [10.0, 20.0]], rtol=1e-12)


def test_relu_kernel_on_paper():
    """H = 1: features relu(w x) + 1, for w = 1 and w = -2."""
    kernel = ops.ActivationKernel([[1.0], [-2.0]], tf.nn.relu, epsilon=1.0)
    # query 3: (4, 1). key 1: (2, 1) -> 9. key -1: (1, 3) -> 7.
    matrix = reference.attention_matrix(column(3.0), column(1.0, -1.0), kernel)
    np.testing.assert_allclose(matrix[0, 0, 0], [9 / 16, 7 / 16], rtol=1e-12)


# Three tokens, H = 1. Far weights are e^log_gain (1 + q k + (q k)^2 / 2), Taylor's
# kernel, near weights e^(q k). The decays of tokens 1 and 2 are between them and the
# token before; the decay of token 0 has no effect.
QUERY, KEY = np.array([1.0, -0.5, 2.0]), np.array([0.3, 1.0, -2.0])
DECAY = np.array([-7.0, -0.4, -1.1])
BETWEEN = np.exp([[0, -0.4, -1.5], [-0.4, 0, -1.1], [-1.5, -1.1, 0]])
PRODUCTS = QUERY[:, None] * KEY
TAYLOR = 1 + PRODUCTS + PRODUCTS**2 / 2
IS_NEAR = {
    1: np.eye(3, dtype=bool),
    2: np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool),
    3: np.ones((3, 3), bool),
}


def matrix_and_log_sums(**options):
    """Returns arrays `(3, 3)` and `(3,)` for the three tokens."""
    for name in options.keys() & {"decay", "starts", "key_mask"}:
        options[name] = tf.constant(options[name])[None]
    if "decay" in options:
        options["decay"] = options["decay"][..., None]
    given = column(*QUERY), column(*KEY), options.pop("kernel", ops.TaylorKernel())
    matrix = reference.attention_matrix(*given, **options)
    return matrix[0, 0].numpy(), reference.log_sums(*given, **options)[0, :, 0, 0]


def assert_is(weights, **options):
    """Asserts that matrix and log-sums come from these weights, `(3, 3)`."""
    matrix, log_sums = matrix_and_log_sums(**options)
    sums = weights.sum(1, keepdims=True)
    expected = np.divide(weights, sums, out=np.zeros((3, 3)), where=sums != 0)
    np.testing.assert_allclose(matrix, expected, rtol=1e-12, atol=0)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(log_sums, np.log(sums[:, 0]), rtol=1e-12)


@pytest.mark.parametrize("window", [None, 1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_three_tokens_with_decay_and_window_on_paper(causal, window):
    near = IS_NEAR.get(window, np.zeros((3, 3), bool))
    weights = np.where(near, np.exp(PRODUCTS), 2.0 * TAYLOR) * BETWEEN
    assert_is(
        np.tril(weights) if causal else weights,
        causal=causal,
        exact_window=window,
        log_gain=tf.constant([np.log(2.0)]),
        decay=DECAY,
    )


def test_three_tokens_of_local_attention_on_paper():
    weights = np.tril(np.exp(PRODUCTS) * BETWEEN) * IS_NEAR[2]
    options = {"causal": True, "decay": DECAY}
    assert_is(weights, kernel=None, exact_window=2, **options)


def test_segments_hide_each_other_and_a_mask_leaves_a_row_that_sees_nothing():
    # token 0 is a segment, tokens 1 and 2 another one; token 1 is masked
    weights = TAYLOR * BETWEEN * [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    options = {"starts": [False, True, False], "key_mask": [True, False, True]}
    assert_is(weights, decay=DECAY, **options)
    assert_is(np.tril(weights), decay=DECAY, causal=True, **options)


@pytest.mark.parametrize("huge", [-1e30, -np.inf])
def test_a_huge_decay_hides_what_it_decays_and_loses_no_other(huge):
    decay = np.array([huge, huge, -1.1])
    apart = [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert_is(TAYLOR * BETWEEN * apart, decay=decay)
    assert_is(np.tril(TAYLOR * BETWEEN * apart), decay=decay, causal=True)
    # also where nothing else is visible
    weights = np.tril(TAYLOR * BETWEEN * apart) * [1, 0, 1]
    mask = [True, False, True]
    assert_is(weights, decay=decay, causal=True, key_mask=mask)


def test_keys_that_are_decayed_below_all_numbers_are_still_weighed():
    """Tests a query that sees only such keys: their relative weights count."""
    decay = np.array([0.0, -0.4, -1e4])
    matrix, log_sums = matrix_and_log_sums(
        decay=decay, key_mask=[True, True, False], causal=True
    )
    weights = TAYLOR[2, :2] * np.exp([-0.4, 0.0])
    np.testing.assert_allclose(matrix[2, :2], weights / weights.sum(), rtol=1e-12)
    np.testing.assert_allclose(log_sums[2], np.log(weights.sum()) - 1e4, rtol=1e-12)
