"""The numbers of two sides, each computed in a process of its own."""

import pathlib
import tempfile

import numpy as np

from benchmarks.peers import arrays
from benchmarks.workers import Missing

# Differences up to this share are those of the order of sums in float32.
AGREES = 1e-5
NAMED = "pair", "name", "because", "expected", "environment"


def compare(comparison, pool):
    """A row: the comparison's names, and the differences or why there are none.

    Args:
        comparison: dict of `cases.comparison`.
        pool: `turns.Pool` of the sides.
    """
    row = {key: comparison[key] for key in NAMED}
    inputs = arrays.drawn(comparison["theirs"])
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        names = "inputs", "theirs", "ours"
        paths = {name: str(pathlib.Path(folder, f"{name}.npz")) for name in names}
        np.savez(paths["inputs"], **inputs)
        for side, environment in (("theirs", row["environment"]), ("ours", "ours")):
            files = {"inputs": paths["inputs"], "outputs": paths[side]}
            case = {**comparison[side], **files, "theirs": paths["theirs"]}
            try:
                pool.ask(environment, do="make", name="numbers", case=case)
            except Missing as error:
                return {**row, "missing": str(error)}
            except RuntimeError as error:
                return {**row, "reason": f"{side}: {error}"}
            found[side] = dict(np.load(paths[side]))
    seen = inputs["seen"]
    if comparison["ours"].get("all_rows"):
        seen = np.ones_like(seen)
    row |= arrays.differences(found["ours"], found["theirs"], seen)
    if "random_blocks" in found["theirs"]:
        row["random_blocks"] = arrays.about(found["theirs"]["random_blocks"])
    return row


def verdict(row):
    """What came out: "agree", "differ", "fails", or "not run"."""
    if "missing" in row:
        return "not run"
    if "reason" in row:
        return "fails"
    close = row["output"] <= AGREES * row["largest_output"]
    return "agree" if close and row["gradient"] <= AGREES else "differ"


def is_expected(row):
    """Whether it came out as `cases` says; to fail is for theirs."""
    ours_failed = row.get("reason", "").startswith("ours")
    return verdict(row) == row["expected"] and not ours_failed
