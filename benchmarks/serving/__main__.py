"""Measures the service of examples/serving under load.

    python -m benchmarks.serving [--quick] [--rounds 1] [--new-tokens 100]
        [--prompts 100 4000] [--sessions 1 8 64] [--output benchmarks/results/serving]

Exports two models of one size with random weights, with the state of linear attention
and with a key-value cache of exact attention, serves each from a process on one core,
and drives sessions that all begin at once. Then calls the signatures without HTTP.
Writes results.json and tables.md.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import tempfile

from benchmarks import machine, turns
from benchmarks.serving import models, sessions, signatures, tables
from benchmarks.serving.service import Service

ENVIRONMENTS = {"serving": ("serving.signatures", None)}
QUICK = models.Sizes(num_layers=1, num_heads=2, hidden_dim=32, num_random_features=16)
# A run without HTTP draws at most that many tokens: each step is like the others.
MOST_STEPS = 32
# Sessions may take hours if they have to: no measurement ends before its time.
SECONDS = 10_000.0


def main(argv=None):
    options = parsed(argv)
    sizes = QUICK if options.quick else models.Sizes()
    results = {
        "machine": {**machine.describe(threads=1), "highest_load": 0.0},
        "versions": {},
        "sizes": dataclasses.asdict(sizes),
        "new_tokens": options.new_tokens,
        "served": [],
        "alone": [],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for length in options.prompts:
            exported = {
                contender: pathlib.Path(folder, f"{length} {contender}")
                for contender in models.CONTENDERS
            }
            bytes_of = {
                contender: models.export(
                    contender, length + options.new_tokens, sizes, path
                )
                for contender, path in exported.items()
            }
            serve(exported, bytes_of, length, sizes, options, results)
            call(exported, length, sizes, options, results)
    (options.output / "tables.md").write_text(tables.report(results))
    print(tables.report(results))


def parsed(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models, for a look")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--prompts", type=int, nargs="+")
    parser.add_argument("--sessions", type=int, nargs="+")
    parser.add_argument(
        "--output", type=pathlib.Path, default="benchmarks/results/serving"
    )
    options = parser.parse_args(argv)
    options.new_tokens = options.new_tokens or (8 if options.quick else 100)
    options.prompts = options.prompts or ([20, 60] if options.quick else [100, 4000])
    options.sessions = options.sessions or ([1, 3] if options.quick else [1, 8, 64])
    return options


def serve(exported, bytes_of, length, sizes, options, results):
    """Adds a row to `results["served"]` for each number of sessions and contender."""
    limits = {
        "max_sessions": max(options.sessions),
        "max_new_tokens": options.new_tokens,
        "max_prompt_length": length,
        "seconds": SECONDS,
    }
    with contextlib.ExitStack() as stack:
        services, before = {}, {}
        for contender, path in exported.items():
            log = path.parent / f"{path.name}.log"
            service = Service(path, log, limits)
            stack.callback(service.stop)
            prompt = signatures.prompt_of(length, sizes.vocabulary_size)
            # the first session of a service is the slowest
            sessions.drive(service.port, [prompt], options.new_tokens, lambda: None)
            services[contender] = service
            before[contender] = service.resident("VmRSS")
        for count in sorted(options.sessions):
            rows = {
                contender: {
                    "contender": contender,
                    "prompt_length": length,
                    "sessions": count,
                    "state_bytes": bytes_of[contender],
                    "rounds": [],
                }
                for contender in exported
            }
            prompts = [
                signatures.prompt_of(length, sizes.vocabulary_size, seed)
                for seed in range(count)
            ]
            for _ in range(options.rounds):
                for contender, service in services.items():
                    found = one_round(service, prompts, options.new_tokens)
                    growth = found.pop("resident")
                    growth = growth and growth - before[contender]
                    rows[contender]["rounds"].append({**found, "growth_bytes": growth})
                    print(length, count, contender, json.dumps(found), flush=True)
            results["served"] += rows.values()
            save(options, results)


def one_round(service, prompts, new_tokens):
    """A `summary` of sessions, what of the processor they took, and memory meanwhile.

    `processor_seconds` of the service, and bytes `resident` when all had begun, are
    `None` where the system does not tell.
    """
    before = service.processor_seconds()
    times, resident = sessions.drive(
        service.port, prompts, new_tokens, lambda: service.resident("VmRSS")
    )
    used = None if before is None else service.processor_seconds() - before
    found = tables.summary(times)
    return {**found, "processor_seconds": used, "resident": resident}


def call(exported, length, sizes, options, results):
    """Adds a row to `results["alone"]` for each number of sessions and contender."""
    pool = turns.Pool(1, ENVIRONMENTS)
    try:
        for count in options.sessions:
            rows = [
                turns.row(
                    {
                        "contender": contender,
                        "environment": "serving",
                        "folder": str(path),
                        "batch": count,
                        "prompt_length": length,
                        "new_tokens": min(options.new_tokens, MOST_STEPS),
                        "vocabulary_size": sizes.vocabulary_size,
                    }
                )
                for contender, path in exported.items()
            ]
            turns.take_turns(rows, pool, options.rounds, limit=float("inf"))
            for row in rows:
                del row["folder"]  # it is gone when this is read
            results["alone"] += rows
            results["versions"] = pool.versions["serving"]
            save(options, results)
    finally:
        pool.stop()


def save(options, results):
    load = max(results["machine"]["highest_load"], os.getloadavg()[0])
    results["machine"]["highest_load"] = load
    turns.save(options.output / "results.json", results)


if __name__ == "__main__":
    main()
