"""Other libraries, run as they are installed, on the inputs of `estimates`.

Each runs in its environment in `.bench/`; one that cannot be had is a row with the
reason.
"""

import pathlib
import tempfile

import numpy as np

from benchmarks import measure, turns, workers
from benchmarks.accuracy import estimates, inputs

# The file of contenders, and what pip installs.
ENVIRONMENTS = {
    **{name: workers.ENVIRONMENTS[name] for name in ("torch", "kernel_attention")},
    "xformers": ("contenders.xformers_layers", ["xformers==0.0.28.post3", "numpy"]),
    "trax": ("contenders.trax_layers", ["trax==1.4.1"]),
}
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
SETTINGS = ((16, 0.5, 256), (16, 1.0, 256), (64, 0.5, 256))
THREADS = 2


def rows(quick=False, install=True):
    """Yields rows as those of `estimates`, or with a `"reason"` in place of errors.

    Args:
        quick: bool, shorter and fewer draws.
        install: bool, have pip install what is not there.
    """
    missing = measure.install_missing(ENVIRONMENTS) if install else {}
    pool = turns.Pool(THREADS, ENVIRONMENTS, missing)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for setting in SETTINGS:
                yield from setting_rows(pool, setting, quick, folder)
    finally:
        pool.stop()


def setting_rows(pool, setting, quick, folder):
    """The peers answer to the same draws, one after the other."""
    head_dim, std, m = setting
    length = estimates.QUICK_LENGTH if quick else estimates.LENGTH
    draws = estimates.QUICK_DRAWS if quick else estimates.DRAWS
    reasons, errors = {}, {name: [] for name in PEERS}
    for seed in range(draws):
        data = inputs.draw(seed, length, head_dim, std)
        exact = inputs.exact_weights(data) @ data.value
        for name, environment in PEERS.items():
            if name in reasons:
                continue
            try:
                estimate = attend(name, environment, pool, data, m, seed, folder)
                errors[name].append(estimates.errors(estimate, exact))
            except (workers.Missing, RuntimeError) as error:
                reasons[name] = str(error)
    of = {"length": length, "head_dim": head_dim, "std": std}
    for name, environment in PEERS.items():
        if name in reasons:
            yield {**of, "features": m, "estimator": name, "reason": reasons[name]}
        else:
            row = estimates.row(name, m, errors[name], of)
            yield {**row, "versions": pool.versions[environment]}


def attend(name, environment, pool, data, num_features, seed, folder):
    """The output of a peer's attention, from its process."""
    paths = {"inputs": str(folder / "inputs.npz"), "output": str(folder / "output.npy")}
    np.savez(paths["inputs"], **data._asdict())
    case = {"contender": name, "features": num_features, "seed": seed, **paths}
    pool.ask(environment, do="attend", case=case)
    return np.load(paths["output"]).astype("float64")
