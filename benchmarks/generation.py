"""Measures `generate` of whole models beside KerasHub's with its cache.

python -m benchmarks.generation [--rounds 3] [--threads 2] [--batches 1 8 64]
    [--prompts 100 4000] [--new-tokens 256] [--limit 120]
    [--output benchmarks/results/generation]

PerformerLM and GPT2CausalLM have the same width, depth, heads and vocabulary, random
weights, the same prompts, and take the likeliest token. Installs KerasHub into `.bench`
where it is not there (1 GB). Writes results.json and tables.md.
"""

import argparse
import os
import pathlib
import statistics

from benchmarks import machine, measure, tables, turns
from benchmarks.peers import environments
from benchmarks.results import ratio

ENVIRONMENTS = {
    "ours": ("contenders.generate_ours", None),
    "keras_hub": (
        "contenders.generate_hub",
        environments.ENVIRONMENTS["keras_hub"][1],
    ),
}
# Environment and mode.
CONTENDERS = {
    ("ours", "graph"): "ours",
    ("keras_hub", "graph"): "GPT2CausalLM, jit_compile=False",
    ("keras_hub", "xla"): "GPT2CausalLM",
}
SIZES = {
    "vocabulary_size": 256,
    "num_layers": 4,
    "num_heads": 4,
    "hidden_dim": 256,
    "intermediate_dim": 1024,
}
# Matrices of a layer's attention that KerasHub has at once when it reads a prompt.
MATRICES = 3


def main(argv=None):
    options = parsed(argv)
    missing = measure.install_missing(ENVIRONMENTS)
    pool = turns.Pool(options.threads, ENVIRONMENTS, missing)
    described = {**machine.describe(options.threads), "highest_load": 0.0}
    results = {
        "machine": described,
        "versions": pool.versions,
        "sizes": SIZES,
        "rows": [],
    }
    try:
        for group in groups(options.prompts, options.batches, options.new_tokens):
            rows = [turns.row(case, too_large(case)) for case in group]
            turns.take_turns(rows, pool, options.rounds, options.limit)
            results["rows"] += rows
            load = max(described["highest_load"], os.getloadavg()[0])
            described["highest_load"] = load
            turns.save(options.output / "results.json", results)
            print(table(results), flush=True)
    finally:
        pool.stop()
    (options.output / "tables.md").write_text(report(results))


def parsed(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 8, 64))
    parser.add_argument("--prompts", type=int, nargs="+", default=(100, 4000))
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--limit", type=float, default=120, help="seconds of a run")
    parser.add_argument(
        "--output", type=pathlib.Path, default="benchmarks/results/generation"
    )
    return parser.parse_args(argv)


def groups(prompts, batches, new_tokens):
    """Cases that take turns: those of one prompt length and batch."""
    for length in prompts:
        for batch in batches:
            yield [
                {
                    "environment": environment,
                    "mode": mode,
                    "prompt_length": length,
                    "new_tokens": new_tokens,
                    "batch": batch,
                    "sizes": SIZES,
                }
                for environment, mode in CONTENDERS
            ]


def too_large(case):
    """Why memory does not hold a case; `None` if it does.

    KerasHub reads a prompt by matrices of all tokens and all places of the cache.
    """
    if case["environment"] == "ours":
        return None
    length = case["prompt_length"] + case["new_tokens"]
    matrix = 4 * case["batch"] * case["sizes"]["num_heads"] * length**2
    needed = MATRICES * matrix
    if needed < machine.free_bytes():
        return None
    return f"needs {needed / 1e9:.0f} GB, more than is free"


def report(results):
    described = results["machine"]
    versions = {
        name: v for each in results["versions"].values() for name, v in each.items()
    }
    said = ", ".join(f"{name} {version}" for name, version in versions.items())
    sizes = ", ".join(f"{name} {value}" for name, value in results["sizes"].items())
    return "\n\n".join(
        [
            "# Generating with whole models",
            f"`{described['command']}`, {described['date']}. {described['cpu']}, "
            f"{described['threads']} threads; load {described['load_at_start']:.1f} "
            f"before, at most {described['highest_load']:.1f} meanwhile; {said}. "
            f"{sizes}; random weights, the likeliest token.",
            table.__doc__,
            table(results) + "\n",
        ]
    )


def table(results):
    """New tokens a second of all sequences, prompts included, medians of turns."""
    speeds, reasons = {}, {}
    for row in results["rows"]:
        place = row["prompt_length"], row["new_tokens"], row["batch"]
        contender = row["environment"], row["mode"]
        reasons.setdefault(place, {})[contender] = row["reason"]
        if row["times"]:
            speed = row["batch"] * row["new_tokens"] / statistics.median(row["times"])
            speeds[place, contender] = speed
    rows = []
    for place, why in reasons.items():
        ours, *others = (speeds.get((place, contender)) for contender in CONTENDERS)
        cells = [
            why.get(contender) or tables.number(speeds.get((place, contender)), 1)
            for contender in CONTENDERS
        ]
        length, new_tokens, batch = place
        best = max(filter(None, others), default=None)
        faster = tables.number(ratio(ours, best))
        rows.append([f"{length:,}", new_tokens, batch, *cells, faster])
    header = ["prompt", "new tokens", "sequences", *CONTENDERS.values()]
    return tables.table([*header, "ours / the faster of the others"], rows)


if __name__ == "__main__":
    main()
