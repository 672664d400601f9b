"""Figure 4: the error of the output of attention against the number of features.

The error is |output - exact| / |exact| (Frobenius), of data and features that are drawn
anew each time (seeds 0, 1, ...); beside it stands the mean squared error. This package
computes in float32, the exact answer and all others in float64.
"""

import numpy as np

from benchmarks.accuracy import best_rank, estimators, inputs

BEST_RANK = "best rank m"
# Head size, the standard deviation of queries and keys, and how many features.
SWEEP = (16, 32, 64, 128, 256, 512, 1024)
SETTINGS = (
    (16, 0.25, SWEEP),
    (16, 0.5, SWEEP),
    (16, 1.0, SWEEP),
    (64, 0.5, (256,)),
    (64, 1.0, (256,)),
)
LENGTH, DRAWS = 4096, 15
QUICK_LENGTH, QUICK_DRAWS, QUICK_SWEEP = 1024, 3, (16, 64, 256)


def rows(quick=False):
    """Yields dicts, one for each estimator, setting and number of features."""
    length, draws = (QUICK_LENGTH, QUICK_DRAWS) if quick else (LENGTH, DRAWS)
    for head_dim, std, sweep in SETTINGS:
        if quick:
            sweep = [m for m in sweep if m in QUICK_SWEEP]
        yield from setting_rows(length, draws, head_dim, std, sweep)


def setting_rows(length, draws, head_dim, std, sweep):
    """The rows of one setting: controls first, then what is random."""
    setting = {"length": length, "head_dim": head_dim, "std": std}
    cases = [
        (estimators.MEAN, None),
        (estimators.TAYLOR, None),
        *((name, m) for name in estimators.RANDOM for m in sweep),
    ]
    measured = {case: [] for case in cases}
    for seed in range(draws):
        data = inputs.draw(seed, length, head_dim, std)
        weights = inputs.exact_weights(data)
        exact = weights @ data.value
        if seed == 0:  # the floor hardly differs between draws of data
            floor = best_rank.errors(weights, sweep)
        for name, m in cases:
            estimate = estimators.attention(name, data, m, seed)
            measured[name, m].append(errors(estimate, exact))
    for m, error in zip(sweep, floor, strict=True):
        mean_square = error**2 * float(np.mean(exact**2))
        yield row(BEST_RANK, m, [(error, mean_square)], setting)
    for (name, m), of_draws in measured.items():
        yield row(name, m, of_draws, setting)


def errors(estimate, exact):
    """Relative error, and mean squared error."""
    difference = estimate - exact
    relative = np.linalg.norm(difference) / np.linalg.norm(exact)
    return float(relative), float(np.mean(difference**2))


def row(name, num_features, of_draws, setting):
    relative, squared = np.transpose(of_draws)
    return {
        **setting,
        "estimator": name,
        "features": num_features,
        "draws": len(relative),
        "relative_error": float(relative.mean()),
        "relative_error_std": spread(relative),
        "relative_error_range": [float(relative.min()), float(relative.max())],
        "mean_squared_error": float(squared.mean()),
        "mean_squared_error_std": spread(squared),
    }


def spread(values):
    """The standard deviation over draws; `None` of one draw."""
    return float(values.std(ddof=1)) if len(values) > 1 else None
