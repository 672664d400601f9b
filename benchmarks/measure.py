"""Compares time and memory of this package and its peers; writes results.json.

    python -m benchmarks.measure [--lengths 256 512 ...] [--contenders softmax ...]
        [--rounds 9] [--threads 2] [--limit 60] [--output runs/bench]

`--contenders` selects some, and skips memory, which leaves time for more rounds. A
contender is omitted at lengths where a run would take longer than the limit.
`benchmarks.report` makes tables of the results.
"""

from benchmarks import contenders, runner, tables, turns

BUSY_LOAD = 0.5
LENGTHS = (256, 512, 1024, 2048, 4096, 16384, 65536)
FORWARD_LENGTHS = (512, 1024, 4096, 16384)
DETAILED_LENGTHS = (4096, 16384)
MEMORY_LENGTHS = (4096, 16384, 65536)
FORMS = ("bidirectional", "causal")
# Contender, its environment, and its modes ("graph" is eager in PyTorch).
BOTH = ("graph", "xla")
# The opposite of the choice that `jit_compile="auto"` makes for this step.
OTHER_CHOICE = {
    "training": ("softmax, jit_compile=False", "ours", ("graph",)),
    "forward": ("softmax, jit_compile=True", "ours", ("graph",)),
}
ALWAYS = (
    ("softmax", "ours", BOTH),
    ("exact", "ours", BOTH),
    ("returns V", "ours", BOTH),
    ("KernelAttention exp", "kernel_attention", BOTH),
    ("scaled_dot_product_attention", "torch", ("graph",)),
    ("performer-pytorch", "torch", ("graph",)),
)
DETAILED = (
    ("relu", "ours", BOTH),
    ("favor+", "ours", BOTH),
    ("KernelAttention relu", "kernel_attention", BOTH),
)
HALVES = [(name, "ours", BOTH) for name in ("softmax", "relu", "favor+", "returns V")]
CONTENDERS = [name for name, *_ in (*ALWAYS, *OTHER_CHOICE.values(), *DETAILED)]
# A matrix product in every group measures the speed of the machine meanwhile.
MATMUL = ("matmul", "ours", ("graph",))
# Contenders whose time grows with the square of the length; others are linear.
QUADRATIC = {"exact", "scaled_dot_product_attention"}


def main(argv=None):
    more = dict(lengths=LENGTHS, contenders=[str], output=runner.RUNS / "bench")
    choices = {"contenders": CONTENDERS}
    options = runner.options(__doc__, argv, choices, **turns.OPTIONS, **more)
    every = [*groups(options.lengths, options.contenders)]

    def planned(case, results):
        """Makes a row for the case, with the reason if it cannot be measured."""
        reason = too_large(case, runner.free_bytes())
        reason = reason or too_slow(case, results["rows"], options.limit)
        return turns.row(case, reason)

    def of_time(results):
        load = results["machine"]["load_at_start"]
        if load > BUSY_LOAD:
            print(f"Warning: other programs are running (load {load:.1f}); ratios to")
            print("PyTorch can be wrong many times over if they share its cores.")
        for group in every:
            yield [planned(case, results) for case in group]

    def of_memory(results):
        cases = [] if options.contenders else memory_cases(options.lengths)
        return (planned(case, results) for case in cases)

    environments = sorted({case["environment"] for group in every for case in group})
    path = options.output / "results.json"
    turns.measured(options, path, of_time, show, environments, of_memory)


def groups(lengths, chosen=None):
    """Yields lists of cases that take turns, shorter lengths first."""
    wanted = {MATMUL[0], *(chosen or CONTENDERS)}
    for length in sorted(lengths):
        for form in FORMS:
            for step in ("training", "forward"):
                if step == "forward" and length not in FORWARD_LENGTHS:
                    continue
                shared = {"length": length, "form": form, "step": step}
                group = cases((MATMUL, *ALWAYS, OTHER_CHOICE[step]), **shared)
                if length in DETAILED_LENGTHS:
                    group += cases(DETAILED, **shared)
                    group += cases(HALVES, "bfloat16", **shared)
                group = [case for case in group if case["contender"] in wanted]
                if len(group) > 1:
                    yield group


def memory_cases(lengths):
    """Returns cases whose memory is measured, each in its own process."""
    entries, step = (*ALWAYS, OTHER_CHOICE["training"]), "training"
    return [
        case
        for length in sorted(set(lengths) & set(MEMORY_LENGTHS))
        for form in FORMS
        for case in cases(entries, length=length, form=form, step=step)
    ]


def cases(entries, dtype="float32", **shared):
    return [
        {
            "contender": contender,
            "environment": environment,
            "mode": mode,
            "dtype": dtype,
            "part": "layer",
            **shared,
        }
        for contender, environment, modes in entries
        for mode in modes
    ]


def too_large(case, free_bytes):
    """Returns the reason why a case does not fit in memory; `None` if it fits."""
    three_arrays = 3 * 4 * contenders.NUM_HEADS * case["length"]  # of float32
    causal_training = case["form"] == "causal" and case["step"] == "training"
    needed = 0
    if case["contender"] == "exact":
        needed = three_arrays * case["length"]
    elif case["contender"] == "performer-pytorch" and causal_training:
        # stores the running sum after each token (measured: 6.5 GB at 4096)
        needed = three_arrays * contenders.NUM_RANDOM_FEATURES * contenders.KEY_DIM
    if needed > free_bytes:
        return f"needs {needed / 1e9:.0f} GB, {free_bytes / 1e9:.0f} GB are free"


def too_slow(case, rows, limit):
    """Returns the reason why a run would exceed `limit`, from shorter `rows`."""
    keys = "contender", "mode", "dtype", "form", "step"
    for row in reversed(rows):
        seconds = row.get("times") or [row.get("first_call_seconds")]
        if all(row[key] == case[key] for key in keys) and seconds[0] is not None:
            break
    else:
        return None
    power = 2 if case["contender"] in QUADRATIC else 1
    shortest = min(seconds)
    expected = shortest * (case["length"] / row["length"]) ** power
    if expected > limit:
        return (
            f"a run would take {expected:.0f} s ({shortest:.1f} s at length "
            f"{row['length']}), the limit is {limit:g} s"
        )


def show(results, rows):
    for row in rows:
        seconds, peak = tables.median(row), row.get("peak_bytes")
        said = [] if seconds is None else [f"{1e3 * seconds:.1f} ms"]
        said += [] if peak is None else [f"{peak / 2**20:.0f} MiB"]
        keys = "length", "form", "step", "contender", "mode", "dtype"
        print(*(row[key] for key in keys), *said, row["reason"] or "", flush=True)


if __name__ == "__main__":
    main()
