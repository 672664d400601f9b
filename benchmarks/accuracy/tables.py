"""The page of tables, each a function of rows that returns Markdown."""

import numpy as np

from benchmarks.accuracy import checks, estimates, estimators, peers, training
from benchmarks.tables import NOTHING, table

SWEPT = (
    estimators.TRIGONOMETRIC_IID,
    estimators.TRIGONOMETRIC,
    estimators.POSITIVE_IID,
    estimators.POSITIVE,
    estimators.DEFAULT,
    estimators.RELU,
    estimates.BEST_RANK,
)
CONTROLS = (estimators.MEAN, estimators.TAYLOR)


def estimates_tables(rows):
    """A table for each scale: an estimator a line, a number of features a column."""
    parts = []
    for head_dim, std in settings(rows):
        same = [r for r in rows if (r["head_dim"], r["std"]) == (head_dim, std)]
        features = sorted({row["features"] for row in same} - {None})
        lines = [
            [name, *(cell(find(same, name, m)) for m in features)] for name in SWEPT
        ]
        controls = "; ".join(
            f"{name} {cell(find(same, name, None))}" for name in CONTROLS
        )
        head = ["estimator", *(f"m = {m:,}" for m in features)]
        title = f"### Heads of {head_dim}, queries and keys of std {std}"
        parts += [title, table(head, lines), f"Without m: {controls}."]
    return "\n\n".join(parts)


def settings(rows):
    return list(dict.fromkeys((row["head_dim"], row["std"]) for row in rows))


def find(rows, name, num_features):
    """The row of an estimator, or `None`."""
    wanted = name, num_features
    found = (r for r in rows if (r["estimator"], r["features"]) == wanted)
    return next(found, None)


def cell(row):
    """Mean and standard deviation over draws."""
    if row is None:
        return NOTHING
    mean, spread = row["relative_error"], row["relative_error_std"]
    if spread is None:
        return number(mean)
    return f"{number(mean)} ± " + (f"{spread:.2g}" if spread < 100 else number(spread))


def number(x):
    if x < 1e-3:
        return f"{x:.1e}"
    if x < 0.1:
        return f"{x:.4f}"
    return f"{x:.3f}" if x < 10 else f"{x:,.0f}"


def peers_table(of_peers, of_estimates):
    """Peers, and this package at the same settings."""
    head = ["attention"]
    for head_dim, std, m in peers.SETTINGS:
        head.append(f"H = {head_dim}, std {std}, m = {m}")
    named = {**dict.fromkeys(peers.PEERS, of_peers)}
    for name in (estimators.POSITIVE, estimators.DEFAULT, estimators.MEAN):
        named[name] = of_estimates
    lines = []
    for name, rows in named.items():
        lines.append([f"`{name}`" if name in peers.PEERS else name])
        for head_dim, std, m in peers.SETTINGS:
            same = [r for r in rows if (r["head_dim"], r["std"]) == (head_dim, std)]
            row = find(same, name, None if name == estimators.MEAN else m)
            reason = row and row.get("reason")
            lines[-1].append(f"not run: {reason}" if reason else cell(row))
    return table(head, lines)


def training_table(runs, names):
    """What is recalled at the end, and when half of it was."""
    lines = []
    for name in names:
        same = sorted((r for r in runs if r["row"] == name), key=lambda r: r["seed"])
        if not same:
            continue
        results = [run["result"] for run in same]
        lines.append(
            [
                name,
                f"{np.mean(results):.3f}",
                ", ".join(f"{result:.3f}" for result in results),
                ", ".join(str(steps_to(run, 0.5)) for run in same),
            ]
        )
    return table(["attention", "mean", "each seed", "steps to 0.5"], lines)


def steps_to(run, accuracy):
    reached = (steps for steps, value in run["curve"] if value >= accuracy)
    return next(reached, NOTHING)


def redraw_table(runs):
    return training_table(runs, (*training.CONTROLS, *training.REDRAW_ROWS))


def kernels_table(runs):
    return training_table(runs, (*training.CONTROLS, *training.KERNELS))


def checks_table(rows):
    lines = [
        [
            row["law"],
            row["what"],
            f"{row['draws']:,}" if row["draws"] else "formulas",
            f"{row['measured']:.5g}",
            f"{row['expected']:.5g}",
            NOTHING if row["z"] is None else f"{row['z']:+.1f}",
            "yes" if row["passed"] else "**NO**",
        ]
        for row in rows
    ]
    head = ["law", "what", "draws", "measured", "formula or bound", "z", "holds"]
    passed = sum(row["passed"] for row in rows)
    counted = f"{passed} of {len(rows)} hold; a z of {checks.LIMIT} would fail."
    return f"{counted}\n\n{table(head, lines)}"
