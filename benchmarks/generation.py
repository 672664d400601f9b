"""Compares `generate` of whole models with KerasHub's, which has a cache.

    python -m benchmarks.generation [--rounds 3] [--threads 2] [--batches 1 8 64]
        [--prompts 100 4000] [--new-tokens 256] [--limit 120] [--report-only]
        [--output benchmarks/results/generation]

PerformerLM and GPT2CausalLM have the same width, depth, heads, vocabulary and prompts.
Weights are random, and both models take the likeliest token. Installs KerasHub into
`.bench` if it is missing (1 GB). Writes results.json and tables.md.
"""

from benchmarks import runner, tables, turns

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
# Attention matrices of a layer that KerasHub holds at once when it reads a prompt.
MATRICES = 3


def main(argv=None):
    more = {**turns.OPTIONS, "rounds": 3, "limit": 120.0, "batches": (1, 8, 64)}
    more |= {"prompts": (100, 4000), "new_tokens": 256}
    output = runner.RESULTS / "generation"
    options = runner.options(__doc__, argv, **more, output=output)
    results = turns.measured(
        options,
        options.output / "results.json",
        lambda _: groups(options.prompts, options.batches, options.new_tokens),
        lambda results, _: print(table(results), flush=True),
        ["keras_hub"],
        sizes=SIZES,
    )
    runner.write_page(options.output, report(results))


def groups(prompts, batches, new_tokens):
    """Yields lists of rows that take turns, for each prompt length and batch size."""
    for length in prompts:
        for batch in batches:
            shared = {"part": "generate", "prompt_length": length, "batch": batch}
            shared |= {"new_tokens": new_tokens, "sizes": SIZES}
            cases = [
                {"environment": environment, "mode": mode, **shared}
                for environment, mode in CONTENDERS
            ]
            yield [turns.row(case, too_large(case)) for case in cases]


def too_large(case):
    """Returns the reason why a case does not fit in memory; `None` if it fits.

    KerasHub reads a prompt with matrices of all tokens and all positions of the cache.
    """
    length = case["prompt_length"] + case["new_tokens"]
    needed = MATRICES * 4 * case["batch"] * case["sizes"]["num_heads"] * length**2
    if case["environment"] != "ours" and needed >= runner.free_bytes():
        return f"needs {needed / 1e9:.0f} GB, more than is free"


def report(results):
    sizes = ", ".join(f"{name} {value}" for name, value in results["sizes"].items())
    said = runner.said(results["machine"], tables.libraries(results["versions"]))
    return [
        "# Generating with whole models",
        f"{said} {sizes}; random weights, the likeliest token.",
        table.__doc__,
        table(results),
    ]


def table(results):
    """New tokens a second of all sequences, prompts included, medians of turns."""
    lines = []
    keys = "prompt_length", "new_tokens", "batch"
    for (length, new_tokens, batch), same in tables.by(results["rows"], *keys):
        rows = {(row["environment"], row["mode"]): row for row in same}
        speeds = [
            tables.ratio(batch * new_tokens, tables.median(rows[contender]))
            for contender in CONTENDERS
        ]
        cells = [
            rows[contender]["reason"] or tables.number(speed, 1)
            for contender, speed in zip(CONTENDERS, speeds)
        ]
        ours, *others = speeds
        faster = tables.ratio(ours, max(filter(None, others), default=None))
        lines.append([f"{length:,}", new_tokens, batch, *cells, tables.number(faster)])
    header = ["prompt", "new tokens", "sequences", *CONTENDERS.values()]
    return tables.table([*header, "ours / the faster of the others"], lines)


if __name__ == "__main__":
    main()
