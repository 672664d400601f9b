"""One page of tables, and the pictures, of the parts that there are."""

from benchmarks.accuracy import plots, tables, training
from benchmarks.measure import BUSY_LOAD

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
features.

![Error against features](estimates.png)"""
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
TRAINING = """\
![Learning curves](training.png)

Associative recall over {length} tokens ({task}, as in `benchmarks.learning`): 2
blocks, heads of {key_dim}, 256 features, {steps} steps, learning rate {rate}, seeds
{seeds}. What is measured is the part of held-out questions that is answered; a run ends
when 99.5 % are. "redraw" draws the features anew after every 50 steps."""
CHECKS = """\
## Lemma 2, Theorems 1 and 2

Means over draws against closed forms, in standard errors (z), for pairs
x = q / H^(1/4) and y = k / H^(1/4) at H = 8, with 6 rows. The formulas are in
`benchmarks/accuracy/laws.py`, where the exact error of orthogonal features is
derived."""


def write(results, folder):
    """Writes `tables.md` and the pictures; returns the text.

    Args:
        results: dict of the parts that were run, as in `results.json`.
        folder: path.
    """
    parts = [TITLE, explanation(results["about"])]
    if results.get("estimates"):
        rows = results["estimates"]
        draws = max(row["draws"] for row in rows)
        of = dict(draws=draws, last=draws - 1, length=rows[0]["length"])
        parts += [ESTIMATES.format(**of), tables.estimates_tables(rows)]
        plots.draw_estimates(rows, folder / "estimates.png")
    if results.get("peers"):
        parts.append(PEERS.format(versions=versions(results["peers"])))
        parts.append(tables.peers_table(results["peers"], results.get("estimates", [])))
    if results.get("training"):
        runs = results["training"]
        parts += ["## Figure 15: features drawn anew in training, or not"]
        parts += [about_training(runs), tables.redraw_table(runs)]
        parts += ["## Figure 16: generalized kernels", tables.kernels_table(runs)]
        plots.draw_training(runs, folder / "training.png")
    if results.get("checks"):
        parts += [CHECKS, tables.checks_table(results["checks"])]
    text = "\n\n".join(parts)
    (folder / "tables.md").write_text(text + "\n")
    return text


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
    """Names and versions of the libraries that ran."""
    found = {}
    for row in rows:
        found |= row.get("versions", {})
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "none"


def about_training(runs):
    return TRAINING.format(
        length=training.TASK.length,
        task=training.TASK.name,
        key_dim=training.KEY_DIM,
        steps=runs[0]["steps"],
        rate=training.TASK.learning_rate,
        seeds=", ".join(map(str, sorted({run["seed"] for run in runs}))),
    )
