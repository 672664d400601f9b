"""Measures `generate` of whole models beside KerasHub's with its cache.

    python -m benchmarks.generation [--rounds 3] [--threads 2] [--batches 1 8 64]
        [--prompts 100 4000] [--new-tokens 256] [--limit 120]
        [--output benchmarks/results/generation]

PerformerLM and GPT2CausalLM have the same width, depth, heads and vocabulary, random
weights, the same prompts, and take the likeliest token. Installs KerasHub into `.bench`
where it is not there (1 GB). Writes results.json and tables.md.
"""

from benchmarks import machine, tables, turns

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
    output = "benchmarks/results/generation"
    parser = turns.parser(__doc__, output, rounds=3, limit=120)
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 8, 64))
    parser.add_argument("--prompts", type=int, nargs="+", default=(100, 4000))
    parser.add_argument("--new-tokens", type=int, default=256)
    options = parser.parse_args(argv)
    with turns.session(options.threads, ["keras_hub"]) as (pool, results):
        results["sizes"] = SIZES
        turns.measure(
            groups(options.prompts, options.batches, options.new_tokens),
            pool,
            options,
            results,
            options.output / "results.json",
            lambda _: print(table(results), flush=True),
        )
    (options.output / "tables.md").write_text(report(results))


def groups(prompts, batches, new_tokens):
    """Rows that take turns: those of one prompt length and batch."""
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
    """Reason why a case does not fit in memory; `None` if it does.

    KerasHub reads a prompt by matrices of all tokens and all places of the cache.
    """
    length = case["prompt_length"] + case["new_tokens"]
    matrix = 4 * case["batch"] * case["sizes"]["num_heads"] * length**2
    needed = MATRICES * matrix
    if case["environment"] != "ours" and needed >= machine.free_bytes():
        return f"needs {needed / 1e9:.0f} GB, more than is free"


def report(results):
    described = results["machine"]
    sizes = ", ".join(f"{name} {value}" for name, value in results["sizes"].items())
    return "\n\n".join(
        [
            "# Generating with whole models",
            f"`{described['command']}`, {described['date']}. {described['cpu']}, "
            f"{described['threads']} threads; load {described['load_at_start']:.1f} "
            f"before, at most {described['highest_load']:.1f} meanwhile; "
            f"{tables.libraries(results['versions'])}. "
            f"{sizes}; random weights, the likeliest token.",
            table.__doc__,
            table(results) + "\n",
        ]
    )


def table(results):
    """New tokens a second of all sequences, prompts included, medians of turns."""
    lines = []
    for place, same in tables.by(
        results["rows"], "prompt_length", "new_tokens", "batch"
    ):
        length, new_tokens, batch = place
        rows = {(row["environment"], row["mode"]): row for row in same}
        speeds = {
            contender: row["times"] and batch * new_tokens / tables.median(row) or None
            for contender, row in rows.items()
        }
        cells = [
            rows[contender]["reason"] or tables.number(speeds[contender], 1)
            for contender in CONTENDERS
        ]
        ours, *others = (speeds[contender] for contender in CONTENDERS)
        faster = tables.ratio(ours, max(filter(None, others), default=None))
        lines.append([f"{length:,}", new_tokens, batch, *cells, tables.number(faster)])
    header = ["prompt", "new tokens", "sequences", *CONTENDERS.values()]
    return tables.table([*header, "ours / the faster of the others"], lines)


if __name__ == "__main__":
    main()
