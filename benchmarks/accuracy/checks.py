"""Checks Lemma 2 and Theorems 1 and 2 of the paper with sampled features.

A check compares a mean over samples with a formula. z is the difference in standard
errors. An equality holds if |z| is below `LIMIT`, an upper bound if z is below it.
Checks without samples compare formulas; their z is `None`.
"""

import numpy as np
import tensorflow as tf

from benchmarks.accuracy import estimators, laws
from keras_performer import feature_maps, ops

IID = estimators.FEATURE_MAPS[estimators.POSITIVE_IID]
HYPERBOLIC = feature_maps.SoftmaxFeatures(regularized=False, orthogonal=False)
ORTHOGONAL = estimators.FEATURE_MAPS[estimators.POSITIVE]
REGULARIZED = feature_maps.SoftmaxFeatures(hyperbolic=False)
LIMIT = 4.5
DIM, ROWS = 8, 6  # Theorem 2 requires m <= H
GROUPS, QUICK_GROUPS = 100_000, 20_000
# Lengths of x and y, and the cosine between them. If z = x + y is long, estimates have
# tails so heavy that no affordable mean of their squares is normally distributed.
PAIRS = {
    "apart": (0.6, 0.5, 0.0),
    "alike": (0.5, 0.45, 0.95),
    "opposed": (0.7, 0.6, -0.9),
    "long": (0.7, 0.6, 0.4),
}
# Theorem 1 requires weights of at most C. If x and y have lengths of at most 1, then
# C = e and |x + y|^2 <= 4.
SQUARED_NORMS, ANY_SQUARED_NORMS = np.linspace(0, 4, 41), np.geomspace(1e-3, 400, 60)
DIMS = (16, 32, 64, 128, 256, 1024, 4096)


def checks(quick=False):
    """Yields a dict for each check, as `row_of` makes it."""
    groups = QUICK_GROUPS if quick else GROUPS
    for index, (name, shape) in enumerate(PAIRS.items()):
        x, y = pair(*shape)
        for law in (lemma_2, theorem_1, theorem_2):
            yield from law(name, x, y, groups, index)
    yield from theorem_1_formulas()


def pair(length_of_x, length_of_y, cosine):
    """Returns vectors along no axis, where undetermined signs in QR would show."""
    ones = np.ones(DIM) / DIM**0.5
    other = np.resize([1.0, -1.0], DIM) / DIM**0.5
    y = cosine * ones + (1 - cosine**2) ** 0.5 * other
    return length_of_x * ones, length_of_y * y


def lemma_2(name, x, y, groups, seed):
    """Checks that estimates are unbiased and have the mean squared error of `laws`."""
    given = x, y, ROWS, groups
    estimators = {
        "trigonometric": (
            of_trigonometric(*given, (seed, 0)),
            laws.trigonometric_error,
        ),
        "positive": (positive(IID, *given, (seed, 1)), laws.positive_error),
        "hyperbolic": (positive(HYPERBOLIC, *given, (seed, 2)), laws.hyperbolic_error),
    }
    truth = laws.softmax_kernel(x, y)
    for kind, (estimates, error) in estimators.items():
        what = f"{kind} features, x and y {name}"
        yield equal("Lemma 1", f"mean of {what}", estimates, truth)
        squared = (estimates - truth) ** 2
        yield equal("Lemma 2", f"error of {what}", squared, error(x, y, ROWS))


def theorem_1(name, x, y, groups, seed):
    """Checks that regularized features estimate SMREG, and that SMREG / SM <= 1."""
    truth = laws.softmax_kernel(x, y)
    ratio = laws.regularized_ratio(laws.squared_norm(x + y), DIM)
    estimates = positive(REGULARIZED, x, y, ROWS, groups, (seed, 3)) / truth
    yield equal("Theorem 1", f"SMREG / SM, x and y {name}", estimates, ratio)
    yield at_most("Theorem 1", f"SMREG / SM <= 1, x and y {name}", estimates, 1)


def theorem_2(name, x, y, groups, seed):
    """Checks the error of orthogonal features: the formula in `laws`, and the bound."""
    truth = laws.softmax_kernel(x, y)
    estimates = positive(ORTHOGONAL, x, y, ROWS, groups, (seed, 4))
    squared = (estimates - truth) ** 2
    what = f"orthogonal features, x and y {name}"
    yield equal("Theorem 2", f"mean of {what}", estimates, truth)
    exact = laws.orthogonal_error(x, y, ROWS)
    yield equal("Theorem 2", f"error of {what}", squared, exact)
    bound = laws.positive_error(x, y, ROWS) - laws.orthogonal_gain(x, y, ROWS)
    yield at_most("Theorem 2", f"bound on the error of {what}", squared, bound)
    yield formula(
        "Theorem 2", f"the exact error is below the bound, x and y {name}", exact, bound
    )


def theorem_1_formulas():
    largest = max(
        float(laws.regularized_ratio(ANY_SQUARED_NORMS, dim).max()) for dim in DIMS
    )
    yield formula("Theorem 1", "SMREG / SM <= 1 at any |x + y|", largest, 1)
    for dim in DIMS:
        missing = 1 - float(laws.regularized_ratio(SQUARED_NORMS, dim).min())
        what = f"1 - SMREG / SM <= 2 H^(-1/3) at H = {dim}, weights up to e"
        yield formula("Theorem 1", what, missing, 1 - laws.least_ratio(dim))


def equal(law, what, values, expected):
    return check(law, what, values, expected, abs)


def at_most(law, what, values, bound):
    return check(law, what, values, bound, float)


def check(law, what, values, expected, side):
    z = (values.mean() - expected) / (values.std(ddof=1) / len(values) ** 0.5)
    return row_of(law, what, len(values), values.mean(), expected, z, side(z) < LIMIT)


def formula(law, what, value, bound):
    return row_of(law, what, 0, value, bound, None, value <= bound)


def row_of(law, what, draws, measured, expected, z, passed):
    return {
        "law": law,
        "what": what,
        "draws": draws,
        "measured": float(measured),
        "expected": float(expected),
        "z": z if z is None else float(z),
        "passed": bool(passed),
    }


def positive(feature_map, x, y, m, groups, seed):
    """Returns `groups` independent estimates of exp(x . y), each by m projection rows.

    All rows are sampled at once. Blocks of orthogonal rows are independent of each
    other, so the first m rows of each block give one independent estimate.
    """
    dim = len(x)
    drawn_together = dim if feature_map.orthogonal else m
    # hyperbolic features have a half for w and a half for -w
    halves = 2 if feature_map.hyperbolic else 1
    matrix = feature_map.draw(halves * groups * drawn_together, dim, seed)
    kernel = feature_map.kernel(matrix)
    query, key = (tf.constant(dim**0.25 * z[None, None], tf.float32) for z in (x, y))
    logs = kernel.project_queries(query) + kernel.project_keys(key, None)
    # query features omit the factor exp(-|x|^2 / 2), which cancels in attention
    weights = np.exp(logs.numpy().astype("float64") - x @ x / 2)
    return weights.reshape(halves, groups, drawn_together)[..., :m].mean((0, 2))


def of_trigonometric(x, y, m, groups, seed):
    """Returns such estimates by m independent rows, each with a cosine and a sine."""
    rows = ops.gaussian_matrix(groups * m, len(x), seed).numpy().astype("float64")
    cosines = np.cos(rows.reshape(groups, m, len(x)) @ (x - y)).mean(-1)
    return np.exp((x @ x + y @ y) / 2) * cosines
