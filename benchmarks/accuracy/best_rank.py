"""What no linear attention can pass: the best matrix of a rank, by singular values."""

import numpy as np


def errors(weights, ranks):
    """Relative error (Frobenius) of the best approximations of a matrix.

    Where values are N(0, 1), it is that of the output, too: E |A V|^2 = V |A|^2 for V
    columns of values, and the same for what is missing of A.

    Args:
        weights: array of shape `(T, S)`, exact attention whose rows sum to 1.
        ranks: list of ints.

    Returns:
        List of floats.
    """
    # squares of the singular values, in half the time of those
    squares = np.linalg.eigvalsh(weights @ weights.T)[::-1].clip(0)
    missing = np.append(np.cumsum(squares[::-1])[::-1], 0)
    return [
        float((missing[min(rank, len(squares))] / missing[0]) ** 0.5) for rank in ranks
    ]
