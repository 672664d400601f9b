"""Measures time and memory of this package beside its peers; writes results.json.

    python -m benchmarks.measure [--lengths 256 512 ...] [--contenders softmax ...]
        [--rounds 9] [--threads 2] [--limit 60] [--output runs/bench]

With `--contenders` a few are compared in more rounds, without their memory.
`benchmarks.report` makes tables and pictures of it.
"""

import argparse
import os
import pathlib
import statistics

from benchmarks import machine, plan, turns, workers

BUSY_LOAD = 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=plan.LENGTHS)
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=plan.CONTENDERS,
        help="only these, and not their memory",
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        help="seconds; a contender whose run takes longer is left out from there on",
    )
    parser.add_argument("--output", type=pathlib.Path, default="runs/bench")
    options = parser.parse_args()
    missing = install_missing(needed(options.lengths, options.contenders))
    pool = turns.Pool(options.threads, missing=missing)
    try:
        measure(options, pool)
    finally:
        pool.stop()


def needed(lengths, contenders):
    """The environments of the cases that are measured, by name."""
    cases = (case for group in plan.groups(lengths, contenders) for case in group)
    names = {case["environment"] for case in cases}
    return {name: workers.ENVIRONMENTS[name] for name in sorted(names)}


def install_missing(environments=workers.ENVIRONMENTS):
    """Installs the environments that are not there; returns why some cannot be had."""
    missing = {}
    for environment in environments:
        try:
            workers.install(environment, environments)
        except workers.Missing as error:
            missing[environment] = str(error)
            print(f"Missing: {error}", flush=True)
    return missing


def measure(options, pool):
    """Fills `results.json` in `options.output`, group by group."""
    results = {
        "machine": machine.describe(options.threads),
        "versions": pool.versions,
        "missing": pool.missing,
        "rows": [],
        "memory": [],
    }
    load = results["machine"]["load_at_start"]
    if load > BUSY_LOAD:
        print(f"Warning: other programs are running (load {load:.1f}); ratios to")
        print("PyTorch can be wrong many times over if they share its cores.")
    path = options.output / "results.json"
    for cases in plan.groups(options.lengths, options.contenders):
        group = [planned(case, results["rows"], options.limit) for case in cases]
        turns.take_turns(group, pool, options.rounds, options.limit)
        results["machine"]["highest_load"] = max(
            results["machine"].get("highest_load", 0), os.getloadavg()[0]
        )
        results["rows"] += group
        turns.save(path, results)
        print_group(group)
    for case in [] if options.contenders else plan.memory_cases(options.lengths):
        pool.stop()  # the peak of a process is that of all it ever ran
        row = planned(case, results["rows"], options.limit)
        turns.take_turns([row], pool, rounds=0, limit=options.limit)
        results["memory"].append(row)
        turns.save(path, results)
        print_memory(row)


def planned(case, rows, limit):
    """A row for the case, with the reason if it cannot be measured."""
    reason = plan.too_large(case, machine.free_bytes())
    return turns.row(case, reason or plan.too_slow(case, rows, limit))


def print_group(group):
    print("\nL = {length}, {form}, {step}, {part}:".format(**group[0]))
    for row in group:
        seconds = (
            f"{1e3 * statistics.median(row['times']):.1f} ms" if row["times"] else ""
        )
        print(f"  {label(row):36}", " ".join(filter(None, [seconds, row["reason"]])))
    print(end="", flush=True)


def print_memory(row):
    extra = row.get("peak_bytes")
    extra = row["reason"] if extra is None else f"{extra / 2**20:.0f} MiB"
    print("Memory: L = {length}, {form},".format(**row), label(row), extra, flush=True)


def label(row):
    return " ".join([row["contender"], row["mode"], row["dtype"]])


if __name__ == "__main__":
    main()
