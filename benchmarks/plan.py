"""What is measured: groups of cases, each group side by side.

`benchmarks/contenders/__init__.py` says what a case is; here it has an environment too.
"""

from benchmarks import contenders

LENGTHS = (256, 512, 1024, 2048, 4096, 16384, 65536)
FORWARD_LENGTHS = (512, 1024, 4096, 16384)
DETAILED_LENGTHS = (4096, 16384)
MEMORY_LENGTHS = (4096, 16384, 65536)
FORMS = ("bidirectional", "causal")

# Contender, its environment, and its modes ("graph" is eager in PyTorch).
BOTH = ("graph", "xla")
# What the layer's `jit_compile="auto"` does not choose for that step.
OTHER_CHOICE = {
    "training": ("softmax, jit_compile=False", "keras", ("graph",)),
    "forward": ("softmax, jit_compile=True", "keras", ("graph",)),
}
ALWAYS = (
    ("softmax", "keras", BOTH),
    ("exact", "keras", BOTH),
    ("returns V", "keras", BOTH),
    ("KernelAttention exp", "kernel_attention", BOTH),
    ("scaled_dot_product_attention", "torch", ("graph",)),
    ("performer-pytorch", "torch", ("graph",)),
)
DETAILED = (
    ("relu", "keras", BOTH),
    ("favor+", "keras", BOTH),
    ("KernelAttention relu", "kernel_attention", BOTH),
)
# By itself the op is compiled only if told to.
ALONE = (("softmax", "keras", BOTH), ("softmax, jit_compile=True", "keras", ("graph",)))
BFLOAT16 = ("softmax", "relu", "favor+", "returns V")
CONTENDERS = [
    contender for contender, *_ in (*ALWAYS, *OTHER_CHOICE.values(), *DETAILED)
]
# How fast the machine multiplies matrices meanwhile, in every group.
MATMUL = ("matmul", "keras", ("graph",))

# Time grows with the square of the length; with the length in all others.
QUADRATIC = {"exact", "scaled_dot_product_attention"}


def groups(lengths, contenders=None):
    """Yields lists of cases that take turns, shorter lengths first.

    Args:
        lengths: list of ints.
        contenders: list of those to measure, in `CONTENDERS`. Defaults to all.
    """
    wanted = {MATMUL[0], *(contenders or CONTENDERS)}
    for group in all_groups(lengths):
        chosen = [case for case in group if case["contender"] in wanted]
        if len(chosen) > 1:
            yield chosen


def all_groups(lengths):
    for length in sorted(lengths):
        for form in FORMS:
            for step in ("training", "forward"):
                shared = {"length": length, "form": form, "step": step}
                detailed = length in DETAILED_LENGTHS
                if step == "training" or length in FORWARD_LENGTHS:
                    entries = (MATMUL, *ALWAYS, OTHER_CHOICE[step])
                    others = DETAILED if detailed else ()
                    group = cases((*entries, *others), "layer", **shared)
                    if detailed:
                        halves = [(contender, "keras", BOTH) for contender in BFLOAT16]
                        group += cases(halves, "layer", "bfloat16", **shared)
                    yield group
                if detailed:
                    yield cases((MATMUL, *ALONE), "attention", **shared)


def memory_cases(lengths):
    """Cases whose memory is measured, each in a process of its own."""
    return [
        case
        for length in sorted(set(lengths) & set(MEMORY_LENGTHS))
        for form in FORMS
        for case in cases(
            (*ALWAYS, OTHER_CHOICE["training"]),
            "layer",
            length=length,
            form=form,
            step="training",
        )
    ]


def cases(entries, part, dtype="float32", **shared):
    return [
        {
            "contender": contender,
            "environment": environment,
            "mode": mode,
            "dtype": dtype,
            "part": part,
            **shared,
        }
        for contender, environment, modes in entries
        for mode in modes
    ]


def too_large(case, free_bytes):
    """Why the case does not fit in memory; `None` if it does."""
    needed = needed_bytes(case)
    if needed <= free_bytes:
        return None
    return f"needs {needed / 1e9:.0f} GB, {free_bytes / 1e9:.0f} GB are free"


def needed_bytes(case):
    """About what the contenders need that a machine may not have; 0 for the others."""
    three_arrays = 3 * 4 * contenders.NUM_HEADS * case["length"]  # of float32
    if case["contender"] == "exact":
        return three_arrays * case["length"]
    causal_training = case["form"] == "causal" and case["step"] == "training"
    if case["contender"] == "performer-pytorch" and causal_training:
        # it keeps the running sum after each token (measured: 6.5 GB at 4096)
        return three_arrays * contenders.NUM_RANDOM_FEATURES * contenders.KEY_DIM
    return 0


def too_slow(case, rows, limit):
    """Why a run would be longer than `limit` seconds, from shorter ones in `rows`."""
    for row in reversed(rows):
        seconds = row.get("times") or [row.get("first_call_seconds")]
        if series(row) == series(case) and seconds[0] is not None:
            break
    else:
        return None
    power = 2 if case["contender"] in QUADRATIC else 1
    shortest = min(seconds)
    expected = shortest * (case["length"] / row["length"]) ** power
    if expected <= limit:
        return None
    return (
        f"a run would take {expected:.0f} s ({shortest:.1f} s at length "
        f"{row['length']}), the limit is {limit:g} s"
    )


def series(case):
    """What the case shares with the same one at other lengths."""
    keys = "contender", "mode", "dtype", "part", "form", "step"
    return tuple(case[key] for key in keys)
