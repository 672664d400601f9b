"""Makes tables and pictures of what `make bench` measured.

    python -m benchmarks.report [--input runs/bench] [--output benchmarks/results]
        [--machine NAME]

Writes all tables as Markdown to DATE-NAME.md in the output folder and prints where, and
the first of them; saves `time.png` and `memory.png` beside the input. A file that is
there already is left alone: results are kept, and people add to them what they say.
"""

import argparse
import inspect
import json
import pathlib
import re

from benchmarks import decoding, plots, tables, workers
from benchmarks.results import Results

TABLES = (
    tables.overview,
    tables.product_rates,
    tables.targets,
    tables.times,
    tables.shares,
    tables.memory,
    tables.compiling,
    tables.crossover,
    tables.bfloat16,
    tables.not_measured,
)
OPERATIONS = ("operations.json", "one_thread/operations.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=pathlib.Path, default="runs/bench")
    parser.add_argument(
        "--output", type=pathlib.Path, default=workers.ROOT / "benchmarks" / "results"
    )
    parser.add_argument("--machine", help="its name; by default that of its processor")
    options = parser.parse_args()
    measured = json.loads((options.input / "results.json").read_text())
    date = measured["machine"]["date"].partition("T")[0]
    name = options.machine or measured["machine"]["cpu"]
    slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
    path = options.output / f"{date}-{slug}.md"
    if path.exists():
        parser.error(f"{path} exists: move it away, or name another --machine")
    results = Results(measured, shares_of_operations(options.input, measured))
    parts = [f"# {date}, {name}", heading(measured)]
    parts += [section(table, results) for table in TABLES]
    parts += [section(decoding.table, x) for x in found(options.input, "decoding.json")]
    for operations in OPERATIONS:
        parts += [
            f"## Operations by themselves, threads: {x['machine']['threads']}\n\n"
            + x["table"]
            for x in found(options.input, operations)
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(parts) + "\n")
    plots.save(options.input, results)
    print(f"{path}\n\n{tables.overview(results)}")


def found(folder, name):
    """What is in a file of JSON, in a list that is empty if there is no file."""
    path = folder / name
    return [json.loads(path.read_text())] if path.exists() else []


def shares_of_operations(folder, measured):
    """What `benchmarks.operations` found; `None` with another number of threads."""
    for operations in found(folder, OPERATIONS[0]):
        threads = operations["machine"]["threads"], measured["machine"]["threads"]
        if threads[0] == threads[1]:
            return operations["shares"]
        print(
            "Left out: operations.json of {} threads, the rest has {}".format(*threads)
        )
    return None


def heading(measured):
    """The machine, the versions in each environment, and what is missing."""
    lines = [f"- {name}: {value}" for name, value in measured["machine"].items()]
    for environment, versions in measured["versions"].items():
        names = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"- environment {environment}: {names}")
    lines += [f"- missing: {reason}" for reason in measured["missing"].values()]
    return "\n".join(lines)


def section(table, results):
    title, _, notes = table.__doc__.partition("\n")
    paragraphs = [f"## {title}", inspect.cleandoc(notes), table(results)]
    return "\n\n".join(filter(None, paragraphs))


if __name__ == "__main__":
    main()
