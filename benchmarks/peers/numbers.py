"""Samples inputs, has both sides compute, and measures their differences."""

import pathlib
import tempfile

import numpy as np

from benchmarks.turns import Missing

# Differences up to this share are due to the order of sums in float32.
AGREES = 1e-5
NAMED = "pair", "name", "because", "expected", "environment"

# Small gradients are compared with this share of the largest gradient: that of the key
# bias is 0 except for rounding.
SMALLEST = 0.1


def drawn(case):
    """Samples arrays of a case by name: "x", "seen", "cotangent", and the weights.

    Weights have the names and shapes of `keras.layers.MultiHeadAttention`. They are
    large enough for unequal attention weights; biases are not 0.
    """
    random = np.random.default_rng(case["seed"])
    batch, length = case["batch"], case["length"]
    width, heads, dim = (case["sizes"][k] for k in ("width", "num_heads", "key_dim"))
    x = random.standard_normal((batch, length, width))
    hidden = case.get("padding") or [0] * batch
    seen = np.arange(length) < length - np.array(hidden)[:, np.newaxis]
    cotangent = random.standard_normal(x.shape) * seen[..., np.newaxis]
    if "long_token" in case:
        x[0, case["long_token"]] *= 8
    arrays = {"x": x, "cotangent": cotangent}
    for name in case["weights"]:
        arrays |= dense(name, width, (heads, dim), case, random)
    arrays = {name: array.astype("float32") for name, array in arrays.items()}
    arrays["seen"] = seen
    if "global" in case:
        times = np.arange(length)
        arrays["global"] = np.array([np.isin(times, at) for at in case["global"]])
    return arrays


def dense(name, width, heads, case, random):
    """Samples the weights of the layer with this name."""
    if name == "attention_output":
        shape, bias, fan_in = (*heads, width), (width,), heads[0] * heads[1]
    elif name.endswith("norm"):
        gamma, beta = 0.3 * random.standard_normal((2, width))
        return {f"{name}/gamma": 1 + gamma, f"{name}/beta": beta}
    elif name == "projection":
        rows = random.standard_normal((case["num_random_features"], heads[1]))
        return {"projection": rows}
    elif name in ("expand", "contract"):
        inner = case["intermediate_dim"]
        shape = (width, inner) if name == "expand" else (inner, width)
        bias, fan_in = shape[1:], shape[0]
    else:
        groups = case.get("num_key_value_heads", heads[0])
        heads = heads if name.startswith("query") else (groups, heads[1])
        shape, bias, fan_in = (width, *heads), heads, width
    scale = case.get("query_key_scale", 1) if name in ("query", "key") else 1
    return {
        f"{name}/kernel": random.standard_normal(shape) * 1.5 * scale / np.sqrt(fan_in),
        f"{name}/bias": random.standard_normal(bias) * 0.3 * scale,
    }


def differences(ours, theirs, seen):
    """Returns differences between the results of two sides, dicts of arrays.

    Outputs count only if `seen`, `(batch, length)`. Gradients, whose names start with
    "d ", are compared with the largest entry of their array.
    """
    names = sorted(name for name in ours if name.startswith("d "))
    if names != sorted(name for name in theirs if name.startswith("d ")):
        raise ValueError(
            f"Both sides must have the same gradients. Received: {names}, and "
            f"{sorted(theirs)}"
        )
    largest = {name: np.abs(theirs[name]).max() for name in names}
    smallest = SMALLEST * max(largest.values())
    apart = [
        np.abs(ours[name] - theirs[name]).max() / max(largest[name], smallest)
        for name in names
    ]
    return {
        "output": np.abs(ours["output"] - theirs["output"])[seen].max().item(),
        "largest_output": np.abs(theirs["output"])[seen].max().item(),
        "gradient": np.max(apart).item(),  # nan if any is
    }


def about(random_blocks):
    """Describes a table `(heads, count - 2, random)` of Big Bird's random blocks.

    `again` counts repeated blocks, and the first, last, own and neighbouring blocks.
    """
    heads, inner, number = random_blocks.shape
    again = 0
    for head in random_blocks:
        for own, drawn in enumerate(head, start=1):
            seen = {0, inner + 1, own - 1, own, own + 1}
            again += number - len(set(drawn.tolist()) - seen)
    return {
        "entries": random_blocks.size,
        "again": again,
        "largest": random_blocks.max().item(),
        "blocks": inner + 2,
    }


def compare(comparison, pool):
    """Runs a comparison; returns a row with the differences, or with a reason."""
    row = {key: comparison[key] for key in NAMED}
    inputs = drawn(comparison["theirs"])
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
    row |= differences(found["ours"], found["theirs"], seen)
    if "random_blocks" in found["theirs"]:
        row["random_blocks"] = about(found["theirs"]["random_blocks"])
    return row


def verdict(row):
    """Returns the verdict of a case: "agree", "differ", "fails", or "not run"."""
    if "missing" in row:
        return "not run"
    if "reason" in row:
        return "fails"
    close = row["output"] <= AGREES * row["largest_output"]
    return "agree" if close and row["gradient"] <= AGREES else "differ"


def is_expected(row):
    """Returns True for the result that `cases` expects; ours must not fail."""
    ours_failed = row.get("reason", "").startswith("ours")
    return verdict(row) == row["expected"] and not ours_failed
