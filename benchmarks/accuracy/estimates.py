"""Figure 4: the error of the output of attention against the number of features.

The error is |output - exact| / |exact| (Frobenius). Each seed (0, 1, ...) samples new
data and new features. Rows also have the mean squared error. Other libraries run
unchanged, each in its environment in `.bench/`; a missing one gives the reason.
"""

import pathlib
import tempfile

import numpy as np

from benchmarks import turns
from benchmarks.accuracy import estimators

BEST_RANK = "best rank m"
# Head size, standard deviation of queries and keys, and numbers of features.
SWEEP = (16, 32, 64, 128, 256, 512, 1024)
SETTINGS = (
    (16, 0.25, SWEEP),
    (16, 0.5, SWEEP),
    (16, 1.0, SWEEP),
    (64, 0.5, (256,)),
    (64, 1.0, (256,)),
)
LENGTH, DRAWS = 4096, 15
# Contender, and its environment.
PEERS = {
    "performer-pytorch": "torch",
    "xformers sm_reg": "xformers",
    "xformers sm_hyp": "xformers",
    "trax": "trax",
    "torch_geometric relu": "torch",
    "KernelAttention exp": "kernel_attention",
    "KernelAttention expplus": "kernel_attention",
}
PEER_SETTINGS = ((16, 0.5, 256), (16, 1.0, 256), (64, 0.5, 256))
THREADS = 2
QUICK_LENGTH, QUICK_DRAWS, QUICK_SWEEP = 1024, 3, (16, 64, 256)


def rows(quick=False):
    """Yields dicts, one for each estimator, setting and number of features."""
    length, draws = (QUICK_LENGTH, QUICK_DRAWS) if quick else (LENGTH, DRAWS)
    for head_dim, std, sweep in SETTINGS:
        if quick:
            sweep = [m for m in sweep if m in QUICK_SWEEP]
        yield from setting_rows(length, draws, head_dim, std, sweep)


def setting_rows(length, draws, head_dim, std, sweep):
    """Yields the rows of one setting: the best rank, controls, random features."""
    of = {"length": length, "head_dim": head_dim, "std": std}
    cases = [
        (estimators.MEAN, None),
        (estimators.TAYLOR, None),
        *((name, m) for name in estimators.RANDOM for m in sweep),
    ]
    measured = {case: [] for case in cases}
    for seed in range(draws):
        data = estimators.draw(seed, length, head_dim, std)
        weights = estimators.exact_weights(data)
        exact = weights @ data.value
        if seed == 0:  # the floor hardly depends on the sampled data
            floor = best_rank_errors(weights, sweep)
        for name, m in cases:
            estimate = estimators.attention(name, data, m, seed)
            measured[name, m].append(errors(estimate, exact))
    for m, error in zip(sweep, floor, strict=True):
        mean_square = error**2 * float(np.mean(exact**2))
        yield row(BEST_RANK, m, [(error, mean_square)], of)
    for (name, m), of_draws in measured.items():
        yield row(name, m, of_draws, of)


def errors(estimate, exact):
    """Returns the relative error and the mean squared error."""
    difference = estimate - exact
    relative = np.linalg.norm(difference) / np.linalg.norm(exact)
    return float(relative), float(np.mean(difference**2))


def row(name, num_features, of_draws, of):
    relative, squared = np.transpose(of_draws)
    return {
        **of,
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
    """Returns the standard deviation over samples; `None` for a single sample."""
    return float(values.std(ddof=1)) if len(values) > 1 else None


def best_rank_errors(weights, ranks):
    """Returns the relative error (Frobenius) of the best approximation of each rank.

    No linear attention has a smaller error. If values are N(0, 1), the output has the
    same error: E |A V|^2 = V |A|^2 with V columns of values, for weights and errors A.
    """
    # squares of the singular values, in half the time of an SVD
    squares = np.linalg.eigvalsh(weights @ weights.T)[::-1].clip(0)
    missing = np.append(np.cumsum(squares[::-1])[::-1], 0)
    return [
        float((missing[min(rank, len(squares))] / missing[0]) ** 0.5) for rank in ranks
    ]


def peers(quick=False, install=True):
    """Yields rows like `rows`; a peer that fails has a `"reason"` and no errors."""
    environments = sorted({*PEERS.values()}) if install else ()
    with turns.session(THREADS, environments) as (pool, _):
        with tempfile.TemporaryDirectory() as name:
            for setting in PEER_SETTINGS:
                yield from peer_rows(pool, setting, quick, pathlib.Path(name))


def peer_rows(pool, setting, quick, folder):
    """Yields the rows of peers that computed the same samples one after another."""
    head_dim, std, m = setting
    length = QUICK_LENGTH if quick else LENGTH
    draws = QUICK_DRAWS if quick else DRAWS
    reasons, found = {}, {name: [] for name in PEERS}
    for seed in range(draws):
        data = estimators.draw(seed, length, head_dim, std)
        exact = estimators.exact_weights(data) @ data.value
        for name, environment in PEERS.items():
            if name in reasons:
                continue
            try:
                estimate = attend(name, environment, pool, data, m, seed, folder)
                found[name].append(errors(estimate, exact))
            except (turns.Missing, RuntimeError) as error:
                reasons[name] = str(error)
    of = {"length": length, "head_dim": head_dim, "std": std}
    for name, environment in PEERS.items():
        if name in reasons:
            yield {**of, "features": m, "estimator": name, "reason": reasons[name]}
        else:
            versions = {"versions": pool.versions[environment]}
            yield {**row(name, m, found[name], of), **versions}


def attend(name, environment, pool, data, num_features, seed, folder):
    """Returns the output of a peer's attention, computed in the peer's process."""
    paths = {"inputs": str(folder / "inputs.npz"), "output": str(folder / "output.npy")}
    np.savez(paths["inputs"], **data._asdict())
    case = {"contender": name, "features": num_features, "seed": seed, **paths}
    pool.ask(environment, do="attend", case=case)
    return np.load(paths["output"]).astype("float64")
