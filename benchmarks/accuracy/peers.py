"""Other libraries, run as they are installed, on the inputs of `estimates`.

Each runs in its environment in `.bench/`; one that cannot be had is a row with the
reason.
"""

import pathlib
import tempfile

import numpy as np

from benchmarks import workers
from benchmarks.accuracy import estimates, inputs

# Contender, and its environment.
PEERS = {
    "performer-pytorch": "torch",
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
    started, missing = start(install)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for setting in SETTINGS:
                yield from setting_rows(started, missing, setting, quick, folder)
    finally:
        for worker in started.values():
            worker.stop()


def start(install):
    """Workers by environment, and why there is none of the others."""
    started, missing = {}, {}
    for environment in dict.fromkeys(PEERS.values()):
        try:
            if install:
                workers.install(environment)
            started[environment] = workers.Worker(environment, THREADS)
        except workers.Missing as error:
            missing[environment] = str(error)
    return started, missing


def setting_rows(started, missing, setting, quick, folder):
    """The peers answer to the same draws, one after the other."""
    head_dim, std, m = setting
    length = estimates.QUICK_LENGTH if quick else estimates.LENGTH
    draws = estimates.QUICK_DRAWS if quick else estimates.DRAWS
    reasons = {name: missing.get(environment) for name, environment in PEERS.items()}
    errors = {name: [] for name in PEERS}
    for seed in range(draws):
        data = inputs.draw(seed, length, head_dim, std)
        exact = inputs.exact_weights(data) @ data.value
        for name, environment in PEERS.items():
            if reasons[name]:
                continue
            try:
                estimate = attend(name, started[environment], data, m, seed, folder)
                errors[name].append(estimates.errors(estimate, exact))
            except RuntimeError as error:
                reasons[name] = str(error)
    of = {"length": length, "head_dim": head_dim, "std": std}
    for name, environment in PEERS.items():
        if reasons[name]:
            yield {**of, "features": m, "estimator": name, "reason": reasons[name]}
        else:
            row = estimates.row(name, m, errors[name], of)
            yield {**row, "versions": started[environment].versions}


def attend(name, worker, data, num_features, seed, folder):
    """The output of a peer's attention, from its process."""
    paths = {"inputs": str(folder / "inputs.npz"), "output": str(folder / "output.npy")}
    np.savez(paths["inputs"], **data._asdict())
    case = {"contender": name, "features": num_features, "seed": seed, **paths}
    worker.ask(do="attend", case=case)
    return np.load(paths["output"]).astype("float64")
