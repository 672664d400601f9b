"""Measures the error of attention by random and Taylor features.

    python -m benchmarks.accuracy              # five minutes on two cores
    python -m benchmarks.accuracy --report-only

The error is |output - exact| / |exact| (Frobenius). Each seed (0, 1, ...) samples new
data and new features: queries and keys N(0, std^2), values N(0, 1), one head. Writes
results.json and tables.md into `--output`.
"""

import functools

import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.tables import NOTHING, by, table
from keras_performer import feature_maps, ops

AVERAGE = "average of all values"
RANDOM, WITHOUT_NUMBER = ("favor+", "softmax"), (AVERAGE, "taylor")
# Head size, standard deviation of queries and keys, and numbers of features.
SWEEP = (16, 32, 64, 128, 256, 512, 1024)
SETTINGS = (
    (16, 0.25, SWEEP),
    (16, 0.5, SWEEP),
    (16, 1.0, SWEEP),
    (64, 0.5, (256,)),
    (64, 1.0, (256,)),
)
# Tokens, and number of samples.
LENGTH, DRAWS = 4096, 15


def main(argv=None):
    more = dict(report_only=False, output=runner.RUNS / "accuracy")
    options = runner.options(__doc__, argv, **more)
    path = options.output / "results.json"
    if not options.report_only:
        results = {"machine": runner.describe(None), "tensorflow": tf.__version__}
        results |= {"length": LENGTH, "draws": DRAWS, "rows": []}
        runner.add_rows(path, results, cases(), errors)
    print(runner.write_page(options.output, report(runner.read(path))))


def cases():
    for head_dim, std, sweep in SETTINGS:
        of = {"head_dim": head_dim, "std": std}
        for name in WITHOUT_NUMBER:
            yield {**of, "estimator": name, "features": None}
        for name in RANDOM:
            for num_features in sweep:
                yield {**of, "estimator": name, "features": num_features}


def errors(case):
    """Returns the mean error of a case, and the standard deviation over samples."""
    name, num_features = case["estimator"], case["features"]
    of = LENGTH, case["head_dim"], case["std"]
    found = [error(name, num_features, seed, *of) for seed in range(DRAWS)]
    return {
        "relative_error": np.mean(found),
        "relative_error_std": np.std(found, ddof=1),
    }


def error(name, num_features, seed, length, head_dim, std):
    """Returns the error of one sample, computed in float32 by the op of the layer."""
    inputs, exact = sampled(seed, length, head_dim, std)
    if name == AVERAGE:
        estimate = inputs[2].mean(0)
    else:
        feature_map = feature_maps.get(name)
        draw = num_features and feature_map.draw(num_features, head_dim, (seed, 1))
        heads = [tf.constant(x[None, :, None], tf.float32) for x in inputs]
        output = ops.bidirectional_attention(*heads, feature_map.kernel(draw))
        estimate = output[0, :, 0].numpy().astype("float64")
    return float(np.linalg.norm(estimate - exact) / np.linalg.norm(exact))


@functools.cache
def sampled(seed, length, head_dim, std):
    """Returns query, key and value `(L, H)`, and the output of exact attention.

    Logits have the standard deviation std^2.
    """
    random = np.random.default_rng(seed)
    query, key, value = random.standard_normal((3, length, head_dim))
    query, key = std * query, std * key
    scores = query @ key.T / head_dim**0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (query, key, value), weights @ value / weights.sum(-1, keepdims=True)


def report(results):
    machine, version = results["machine"], results["tensorflow"]
    parts = [
        "# The error of the output",
        f"`{machine['command']}`, {machine['cpu']}, TensorFlow {version}, "
        f"{machine['date'][:10]}.",
        f"""\
|output - exact| / |exact|, mean ± standard deviation over {results["draws"]} samples of
data and features, {results["length"]:,} tokens, one head; queries and keys N(0, std^2),
values N(0, 1). "taylor" has 1 + H + H (H + 1) / 2 features, which are not random.""",
    ]
    for (head_dim, std), same in by(results["rows"], "head_dim", "std"):
        cells = {(row["estimator"], row["features"]): cell(row) for row in same}
        numbers = sorted({row["features"] for row in same} - {None})
        lines = [
            [name, *(cells.get((name, m), NOTHING) for m in numbers)] for name in RANDOM
        ]
        controls = "; ".join(f"{name} {cells[name, None]}" for name in WITHOUT_NUMBER)
        parts += [
            f"## Head size {head_dim}, queries and keys of std {std}",
            table(["features", *(f"{m:,}" for m in numbers)], lines),
            f"Without a number: {controls}.",
        ]
    return parts


def cell(row):
    return f"{number(row['relative_error'])} ± {row['relative_error_std']:.2g}"


def number(x):
    if x < 1e-3:
        return f"{x:.1e}"
    return f"{x:.4f}" if x < 0.1 else f"{x:.3f}"


if __name__ == "__main__":
    main()
