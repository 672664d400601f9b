"""Writes a page of tables from the results that exist."""

import numpy as np

from benchmarks import runner
from benchmarks.accuracy import checks, estimates, estimators, training
from benchmarks.measure import BUSY_LOAD
from benchmarks.tables import NOTHING, by, libraries, table

SWEPT = (
    estimators.TRIGONOMETRIC_IID,
    estimators.TRIGONOMETRIC,
    estimators.POSITIVE_IID,
    estimators.POSITIVE,
    estimators.DEFAULT,
    estimators.RELU,
    estimates.BEST_RANK,
)

TITLE = "# How exact, and how well does it learn: the paper's figures on a CPU"
ESTIMATES = """\
## Figure 4: the error of the output

|output - exact| / |exact|, mean ± standard deviation over {draws} draws of data and
features (seeds 0 to {last}), L = {length:,}, one head; queries and keys N(0, std^2),
values N(0, 1). The paper does not say which scale it took: the order depends on it. m
counts features: trigonometric ones come in pairs, so that m of them cost what m
positive ones do. They are a control; no layer has them. "best rank m" is the error
(Frobenius) of the best rank-m approximation of the matrix whose rows sum to 1, from
its singular values, of the first draw: in the mean over values no linear attention with
m features passes it.
"relu" is another kernel and estimates nothing; "taylor" has 1 + H + H (H + 1) / 2
features."""
PEERS = """\
## Other libraries

The same inputs and measure, each library as it is installed, in float32:
{versions}.

`KernelAttention` is a layer; its dense layers are identities here. `expplus` is
FAVOR++. `sm_reg` is what xformers does by itself (regularized features), `sm_hyp` are
positive and negative exponents. Rows of `sm_reg` should be sqrt(H) long and are 1.4 for
4 (H = 16), 5.6 for 8: it estimates a flatter kernel, nearer the mean of values. trax
draws the same features in every layer; here a seed of ours draws them. torch_geometric
has the ReLU kernel, which estimates nothing, and always H ln H features (44, 266).
pytorch-fast-transformers 0.4 is not among them: without CUDA it does not install."""
TRAINING = f"""\
Associative recall over {training.TASK.length} tokens ({training.TASK.name}, as in \
`benchmarks.learning`): 2
blocks, heads of {training.KEY_DIM}, 256 features, {{steps}} steps, learning rate \
{training.TASK.learning_rate}, seeds
{{seeds}}. What is measured is the part of held-out questions that is answered; a run \
ends
when 99.5 % are. "redraw" draws the features anew after every 50 steps."""
CHECKS = """\
## Lemma 2, Theorems 1 and 2

Means over draws against closed forms, in standard errors (z), for pairs
x = q / H^(1/4) and y = k / H^(1/4) at H = 8, with 6 rows. The formulas are in
`benchmarks/accuracy/laws.py`, where the exact error of orthogonal features is
derived."""


def write(results, folder):
    """Writes `tables.md` of the parts that have results."""
    parts = [TITLE, explanation(results["about"])]
    rows, of_peers, runs, laws = (
        results.get(part, []) for part in ("estimates", "peers", "training", "checks")
    )
    if rows:
        draws = max(row["draws"] for row in rows)
        of = dict(draws=draws, last=draws - 1, length=rows[0]["length"])
        parts += [ESTIMATES.format(**of), estimates_tables(rows)]
    if of_peers:
        parts.append(PEERS.format(versions=versions(of_peers)))
        parts.append(peers_table(of_peers, rows))
    if runs:
        parts += ["## Figure 15: features drawn anew in training, or not"]
        seeds = ", ".join(map(str, sorted({run["seed"] for run in runs})))
        parts += [TRAINING.format(steps=runs[0]["steps"], seeds=seeds)]
        parts += [training_table(runs, training.REDRAW_ROWS)]
        parts += ["## Figure 16: generalized kernels"]
        parts += [training_table(runs, training.KERNELS)]
    if laws:
        parts += [CHECKS, checks_table(laws)]
    return runner.write_page(folder, parts)


def explanation(about):
    quick = " `--quick`: too little to conclude from." if about["quick"] else ""
    load = about["load_at_start"]
    shared = ""
    if load > BUSY_LOAD:
        shared = f" Other programs ran beside it (load {load:.1f} at the start)."
    return f"""\
`python -m benchmarks.accuracy`, seeds fixed; every number is in
[results.json](results.json).{quick}

{about["cpu"]}, {about["cores"]} cores, TensorFlow {about["tensorflow"]},
{about["date"][:10]}.{shared}
Errors do not depend on that; no time is stated."""


def versions(rows):
    """Returns names and versions of the libraries that ran."""
    found = {i: row.get("versions", {}) for i, row in enumerate(rows)}
    return libraries(found) or "none"


def estimates_tables(rows):
    """Returns a table per scale: lines are estimators, columns numbers of features."""
    parts = []
    for (head_dim, std), same in by(rows, "head_dim", "std"):
        features = sorted({row["features"] for row in same} - {None})
        lines = [
            [name, *(cell(find(same, name, m)) for m in features)] for name in SWEPT
        ]
        controls = "; ".join(
            f"{name} {cell(find(same, name, None))}"
            for name in (estimators.MEAN, estimators.TAYLOR)
        )
        head = ["estimator", *(f"m = {m:,}" for m in features)]
        title = f"### Heads of {head_dim}, queries and keys of std {std}"
        parts += [title, table(head, lines), f"Without m: {controls}."]
    return "\n\n".join(parts)


def find(rows, name, num_features):
    """Returns the row of an estimator, or `None`."""
    wanted = name, num_features
    found = (r for r in rows if (r["estimator"], r["features"]) == wanted)
    return next(found, None)


def cell(row):
    """Formats the mean and the standard deviation over samples."""
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
    """Returns a table of peers and of this package at the same settings."""
    head = ["attention"]
    for head_dim, std, m in estimates.PEER_SETTINGS:
        head.append(f"H = {head_dim}, std {std}, m = {m}")
    named = {**dict.fromkeys(estimates.PEERS, of_peers)}
    for name in (estimators.POSITIVE, estimators.DEFAULT, estimators.MEAN):
        named[name] = of_estimates
    lines = []
    for name, rows in named.items():
        lines.append([f"`{name}`" if name in estimates.PEERS else name])
        for head_dim, std, m in estimates.PEER_SETTINGS:
            same = [r for r in rows if (r["head_dim"], r["std"]) == (head_dim, std)]
            row = find(same, name, None if name == estimators.MEAN else m)
            reason = row and row.get("reason")
            lines[-1].append(f"not run: {reason}" if reason else cell(row))
    return table(head, lines)


def training_table(runs, names):
    """Returns a table of final accuracies, and of the first step with at least 0.5."""
    lines = []
    for name in (*training.CONTROLS, *names):
        same = sorted((r for r in runs if r["row"] == name), key=lambda r: r["seed"])
        if not same:
            continue
        results = [run["result"] for run in same]
        each = ", ".join(f"{result:.3f}" for result in results)
        reached = ", ".join(str(steps_to(run, 0.5)) for run in same)
        lines.append([name, f"{np.mean(results):.3f}", each, reached])
    return table(["attention", "mean", "each seed", "steps to 0.5"], lines)


def steps_to(run, accuracy):
    reached = (steps for steps, value in run["curve"] if value >= accuracy)
    return next(reached, NOTHING)


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
