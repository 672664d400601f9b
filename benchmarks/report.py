"""Makes tables and pictures of what `make bench` measured.

    python -m benchmarks.report [--input runs/bench]

Prints Markdown; saves `time.png` and `memory.png` beside the results.
"""

import argparse
import inspect
import json
import pathlib

from benchmarks import decoding, plots, tables
from benchmarks.results import Results

TABLES = (
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=pathlib.Path, default="runs/bench")
    folder = parser.parse_args().input
    measured = json.loads((folder / "results.json").read_text())
    print(heading(measured))
    results = Results(measured, shares_of_operations(folder, measured))
    for table in TABLES:
        print(section(table, results))
    if (folder / "decoding.json").exists():
        decoded = json.loads((folder / "decoding.json").read_text())
        print(section(decoding.table, decoded))
    plots.save(folder, results)


def shares_of_operations(folder, measured):
    """What `benchmarks.operations` found; `None` with another number of threads."""
    path = folder / "operations.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    threads = found["machine"]["threads"], measured["machine"]["threads"]
    if threads[0] == threads[1]:
        return found["shares"]
    print("Left out: {} of {} threads, the rest has {}".format(path, *threads))
    return None


def heading(measured):
    """The machine, the versions in each environment, and what is missing."""
    lines = [f"- {name}: {value}" for name, value in measured["machine"].items()]
    for environment, versions in measured["versions"].items():
        found = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines.append(f"- environment {environment}: {found}")
    lines += [f"- missing: {reason}" for reason in measured["missing"].values()]
    return "\n".join(["# Benchmarks", "", *lines])


def section(table, results):
    title, _, notes = table.__doc__.partition("\n")
    paragraphs = [f"\n## {title}", inspect.cleandoc(notes), table(results)]
    return "\n\n".join(filter(None, paragraphs))


if __name__ == "__main__":
    main()
