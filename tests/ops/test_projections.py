"""The distribution of projection matrices, against SciPy's distributions."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_performer import ops

NUM_DRAWS = 2000


def draws(draw, num_rows, num_cols, count=NUM_DRAWS, **options):
    """Samples matrices `(count, num_rows, num_cols)` with seeds (0, 0), (1, 0), ..."""

    @tf.function
    def all_draws():
        return tf.map_fn(
            lambda i: draw(num_rows, num_cols, tf.stack([i, 0]), **options),
            tf.range(count),
            fn_output_signature=tf.float32,
        )

    return all_draws().numpy()


@pytest.mark.parametrize("num_rows", [4, 13])
def test_rows_are_orthogonal_within_blocks(num_rows):
    matrix = ops.orthogonal_gaussian_matrix(num_rows, 5, seed=(3, 1)).numpy()
    assert matrix.shape == (num_rows, 5)
    assert matrix.dtype == np.float32
    directions = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    for start in range(0, num_rows, 5):
        block = directions[start : start + 5]
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-6)
    if num_rows > 10:  # blocks differ
        assert np.abs((directions[:5] * directions[5:10]).sum(1)).max() < 0.95


@pytest.mark.parametrize("draw", [ops.orthogonal_gaussian_matrix, ops.gaussian_matrix])
def test_regularized_rows_have_length_sqrt_h(draw):
    matrix = draw(13, 5, seed=(0, 1), regularized=True).numpy()
    np.testing.assert_allclose(np.linalg.norm(matrix, axis=1), 5**0.5, rtol=1e-6)
    assert np.linalg.matrix_rank(matrix) == 5


@pytest.mark.parametrize("draw", [ops.orthogonal_gaussian_matrix, ops.gaussian_matrix])
def test_equal_seeds_give_equal_matrices_and_different_seeds_different_ones(draw):
    tf.random.set_seed(1)  # has no effect
    first = draw(6, 8, seed=(1, 2)).numpy()
    tf.random.set_seed(2)
    np.testing.assert_array_equal(first, draw(6, 8, seed=tf.constant([1, 2])))
    np.testing.assert_array_equal(first, tf.function(draw)(6, 8, (1, 2)))
    for seed in ((1, 3), (2, 2), (2, 1)):
        other = draw(6, 8, seed=seed).numpy()
        lengths = np.linalg.norm(first, axis=1), np.linalg.norm(other, axis=1)
        assert np.abs(lengths[0] - lengths[1]).min() > 1e-5
        cosines = (first * other).sum(axis=1) / lengths[0] / lengths[1]
        assert np.abs(cosines).max() < 0.95


@pytest.mark.parametrize(
    "draw, regularized",
    [(ops.orthogonal_gaussian_matrix, False), (ops.gaussian_matrix, True)],
)
def test_xla_draws_the_same_matrix(draw, regularized):
    """TensorFlow's own normal numbers differ between XLA and other modes."""
    compiled = tf.function(draw, jit_compile=True)
    np.testing.assert_allclose(
        compiled(13, 5, tf.constant([1, 2]), regularized),
        draw(13, 5, (1, 2), regularized),
        atol=1e-5,
    )


def test_lengths_follow_the_chi_law():
    matrices = draws(ops.orthogonal_gaussian_matrix, 13, 5, count=400)
    lengths = np.linalg.norm(matrices, axis=-1)
    assert stats.kstest(lengths.ravel(), stats.chi(df=5).cdf).pvalue > 1e-3
    # lengths of rows in one block are independent
    correlations = np.corrcoef(lengths.T) - np.eye(13)
    assert np.abs(correlations).max() * np.sqrt(400) < 4.5


def test_an_orthogonal_block_is_haar():
    """Compares moments of entries and of the trace with their Haar values."""
    size = 4
    matrices = draws(ops.orthogonal_gaussian_matrix, size, size, regularized=True)
    matrices /= size**0.5
    traces = np.trace(matrices, axis1=1, axis2=2)
    moments = np.stack([matrices.mean(axis=(1, 2)), traces, traces**2 - 1])
    scores = np.sqrt(NUM_DRAWS) * moments.mean(axis=1) / moments.std(axis=1, ddof=1)
    assert np.abs(scores).max() < 4.5
