"""The numbers of two sides, each in its own process."""

import pathlib
import tempfile

import numpy as np

from benchmarks.peers import arrays


def compare(comparison, pool):
    """A row: the comparison's names, and the differences or why there are none."""
    keys = "pair", "name", "because", "environment"
    row = {key: comparison[key] for key in keys}
    inputs = arrays.drawn(comparison["theirs"])
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            name: str(pathlib.Path(folder, f"{name}.npz"))
            for name in ("inputs", "ours", "theirs")
        }
        np.savez(paths["inputs"], **inputs)
        found = {}
        for side, environment in (("theirs", row["environment"]), ("ours", "ours")):
            case = {
                **comparison[side],
                "inputs": paths["inputs"],
                "outputs": paths[side],
                "theirs": paths["theirs"],
            }
            try:
                pool.ask(environment, do="make", name="numbers", case=case)
            except Exception as error:
                return {**row, "reason": f"{side}: {error}"}
            found[side] = dict(np.load(paths[side]))
    return {**row, **arrays.differences(found["ours"], found["theirs"], inputs["seen"])}
