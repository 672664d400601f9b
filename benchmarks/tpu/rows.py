"""Rows of tables: programs that are lowered and compiled in a new process."""

import dataclasses
import re
import time

from benchmarks import runner

_SIZE = re.compile(r"\(([\d.]+)([MGT])\) exceeds available|Used ([\d.]+)([MGT]) of")
_GIB = {"M": 2.0**-10, "G": 1.0, "T": 2.0**10}


def measure(program, slice_):
    """Lowers a program by a function, and compiles it for a `Slice`; returns a row.

    The row has the memory in bytes, its sum `gib`, and whether it `fits`. If the
    compiler refuses a program for its memory, `refusal` is the compiler's message.
    """
    # first, as it sets variables that JAX reads
    from benchmarks.tpu import compiler  # isort: skip
    from jax.errors import JaxRuntimeError

    start = time.perf_counter()
    stablehlo = program()
    row = {
        "available_gib": slice_.gib_per_chip,
        "lower_seconds": time.perf_counter() - start,
    }
    start = time.perf_counter()
    try:
        compiled = compiler.compile_for(stablehlo, slice_)
    except JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        refusal = str(error).splitlines()[0]
        row["compile_seconds"] = time.perf_counter() - start
        return {**row, "refusal": refusal, "gib": refused_gib(refusal), "fits": False}
    return {
        **row,
        "compile_seconds": compiled.seconds,
        "memory": dataclasses.asdict(compiled.memory),
        "gib": compiled.memory.total / 2**30,
        "fits": slice_.fits(compiled.memory),
    }


def refused_gib(refusal):
    """Returns the needed GiB in the compiler's message; `None` without a number."""
    found = _SIZE.search(refusal)
    if not found:
        return None
    number, unit = [group for group in found.groups() if group]
    return float(number) * _GIB[unit]


def print_table(header, cells, function, cases, path):
    """Calls `function(*case)` for every case, each in a new process; prints a table.

    Prints a line of cells for each row that the function returns, and writes all rows
    so far to `path`. If a case fails, or its process ends, its row has an `error`.
    """
    rows = []
    for line in (header, ["---"] * len(header)):
        print(f"| {' | '.join(line)} |")
    for case in cases:
        try:
            row = runner.in_new_process(function, *case)
            line = cells(row)
        except Exception as error:
            first_line = f"{type(error).__name__}: {error}".splitlines()[0]
            row = {"case": case, "error": first_line[:300]}
            line = [*map(str, case), row["error"]]
        rows.append(row)
        runner.save(path, rows)
        print(f"| {' | '.join(line)} |", flush=True)
    print(f"wrote {path}")


def needed(row):
    """Formats the needed GiB and the available GiB for a table."""
    available = row["available_gib"]
    if "refusal" in row:
        gib = "more" if row["gib"] is None else f"{row['gib']:.1f}"
        return f"refused: {gib} of {available:g}"
    return f"{row['gib']:.2f} of {available:g}" + ("" if row["fits"] else ", too much")
