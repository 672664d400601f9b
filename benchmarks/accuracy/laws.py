"""Formulas of the paper for one pair x = q / H^(1/4) and y = k / H^(1/4).

Features estimate SM(x, y) = exp(x . y) by m random rows w; z = x + y throughout.
"""

import numpy as np
from scipy import special


def softmax_kernel(x, y):
    return np.exp(x @ y)


def trigonometric_error(x, y, m):
    """Lemma 2: mean squared error with a cosine and a sine for each of m rows."""
    z, difference = squared_norm(x + y), squared_norm(x - y)
    scaled = np.exp(z) / softmax_kernel(x, y) ** 2
    return scaled * (1 - np.exp(-difference)) ** 2 / (2 * m)


def positive_error(x, y, m):
    """Lemma 2: mean squared error with m independent positive features."""
    z = squared_norm(x + y)
    return np.exp(z) * softmax_kernel(x, y) ** 2 * (1 - np.exp(-z)) / m


def hyperbolic_error(x, y, m):
    """Lemma 2: mean squared error with features of w and -w for each of m rows."""
    z = squared_norm(x + y)
    return (1 - np.exp(-z)) / 2 * positive_error(x, y, m)


def orthogonal_error(x, y, m):
    """Exact mean squared error with m <= H orthogonal positive features.

    Theorem 2 only bounds it. The sum of two orthogonal rows with independent chi(H)
    lengths has a uniform direction, and a squared length of chi^2 with 2 H degrees, so

        E[exp(w1 . z) exp(w2 . z)] = sum over n of (H)_n (|z|^2 / 2)^n / ((H / 2)_n n!)

    which is 1F1(H; H / 2; |z|^2 / 2); (a)_n = a (a + 1) ... (a + n - 1). Independent
    rows have the expectation exp(|z|^2).
    """
    z, dim = squared_norm(x + y), len(x)
    together = special.hyp1f1(dim, dim / 2, z / 2)
    norms = np.exp(-squared_norm(x) - squared_norm(y))
    return positive_error(x, y, m) - norms * (1 - 1 / m) * (np.exp(z) - together)


def orthogonal_gain(x, y, m):
    """Theorem 2: least reduction of the error by orthogonality, for m <= H.

    2 (m - 1) / (m (H + 2)) (SM(x, y) - exp(-(|x|^2 + |y|^2) / 2))^2
    """
    least = np.exp(-(squared_norm(x) + squared_norm(y)) / 2)
    return 2 * (m - 1) / (m * (len(x) + 2)) * (softmax_kernel(x, y) - least) ** 2


def regularized_ratio(squared_norm_of_z, dim):
    """Exact SMREG(x, y) / SM(x, y), where rows of length sqrt(H) estimate SMREG.

    The mean of exp(w . z) over a sphere of radius sqrt(H) is
    0F1(; H / 2; H |z|^2 / 4), and over Gaussian rows it is exp(|z|^2 / 2). Each term of
    the first power series is at most its term in the second: the ratio is at most 1.
    """
    on_sphere = special.hyp0f1(dim / 2, dim * squared_norm_of_z / 4)
    return on_sphere / np.exp(squared_norm_of_z / 2)


def least_ratio(dim):
    """Theorem 1: lower bound of SMREG / SM, without terms of order o(H^(-1/3))."""
    return 1 - 2 / dim ** (1 / 3)


def squared_norm(x):
    return float(x @ x)
