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
    with tempfile.TemporaryDirectory() as folder:
        for name, environment in PEERS.items():
            try:
                if install:
                    workers.install(environment)
                worker = workers.Worker(environment, THREADS)
            except workers.Missing as error:
                for setting in SETTINGS:
                    yield without_errors(name, setting, str(error))
                continue
            try:
                for setting in SETTINGS:
                    yield setting_row(name, worker, setting, quick, folder)
            finally:
                worker.stop()


def without_errors(name, setting, reason):
    head_dim, std, m = setting
    found = {"estimator": name, "reason": reason}
    return {"head_dim": head_dim, "std": std, "features": m, **found}


def setting_row(name, worker, setting, quick, folder):
    head_dim, std, m = setting
    length = estimates.QUICK_LENGTH if quick else estimates.LENGTH
    draws = estimates.QUICK_DRAWS if quick else estimates.DRAWS
    errors = []
    for seed in range(draws):
        data = inputs.draw(seed, length, head_dim, std)
        exact = inputs.exact_weights(data) @ data.value
        try:
            estimate = attend(name, worker, data, m, seed, pathlib.Path(folder))
        except RuntimeError as error:
            return without_errors(name, setting, str(error))
        errors.append(estimates.errors(estimate, exact))
    of = {"length": length, "head_dim": head_dim, "std": std}
    row = estimates.row(name, m, errors, of)
    return {**row, "versions": worker.versions}


def attend(name, worker, data, num_features, seed, folder):
    """The output of a peer's attention, from its process."""
    paths = {"inputs": str(folder / "inputs.npz"), "output": str(folder / "output.npy")}
    np.savez(paths["inputs"], **data._asdict())
    case = {"contender": name, "features": num_features, "seed": seed, **paths}
    worker.ask(do="attend", case=case)
    return np.load(paths["output"]).astype("float64")
