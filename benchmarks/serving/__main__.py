"""Measures the service of examples/serving under load.

    python -m benchmarks.serving [--quick] [--rounds 1] [--new-tokens 100]
        [--prompts 100 4000] [--sessions 1 8 64] [--report-only]
        [--output benchmarks/results/serving]

Exports two models of equal size with random weights: linear attention with a state, and
exact attention with a key-value cache. Serves each from a process on one core, and runs
sessions that all begin at once. Then calls the signatures without HTTP. Writes
results.json and tables.md. `--quick` replaces all sizes by small ones.
"""

import contextlib
import pathlib
import statistics
import tempfile

import numpy as np

from benchmarks import runner, tables, turns
from benchmarks.serving import client, models
from benchmarks.serving.models import CONTENDERS

QUICK = dict(num_layers=1, num_heads=2, hidden_dim=32, num_random_features=16)
# Without HTTP a run decodes at most this many tokens, as all steps are alike.
MOST_STEPS = 32
# Time limit of a session, so long that no measurement reaches it.
SECONDS = 10_000.0


def main(argv=None):
    more = {**turns.OPTIONS, "rounds": 1, "limit": float("inf"), "quick": False}
    more |= dict(new_tokens=100, prompts=(100, 4000), sessions=(1, 8, 64))
    output = runner.RESULTS / "serving"
    options = runner.options(__doc__, argv, **more, output=output)
    if options.quick:
        options.prompts, options.sessions, options.new_tokens = (20, 60), (1, 3), 8
    path = options.output / "results.json"
    if not options.report_only:
        measure(options, path)
    print(runner.write_page(options.output, report(runner.read(path))))


def measure(options, path):
    sizes = {**models.SIZES, **(QUICK if options.quick else {})}
    with turns.session(1) as (pool, results), tempfile.TemporaryDirectory() as folder:
        results |= {"sizes": sizes, "served": []}
        results |= {"new_tokens": options.new_tokens, "alone": results["rows"]}
        for length in options.prompts:
            exported = {
                contender: pathlib.Path(folder, f"{length} {contender}")
                for contender in CONTENDERS
            }
            bytes_of = {
                name: models.export(name, length + options.new_tokens, sizes, path)
                for name, path in exported.items()
            }
            for row in served(exported, bytes_of, length, sizes, options):
                results["served"].append(row)
                runner.note_load(results["machine"])
                runner.save(path, results)
            for rows in called(exported, length, sizes, options):
                turns.measure(rows, pool, options, results, path)
                for row in rows:
                    del row["folder"]  # a temporary folder
            runner.save(path, results)
            pool.stop()


def served(exported, bytes_of, length, sizes, options):
    """Yields a row for each number of sessions and contender."""
    limits = {
        "max_sessions": max(options.sessions),
        "max_new_tokens": options.new_tokens,
        "max_prompt_length": length,
        "seconds": SECONDS,
    }
    with contextlib.ExitStack() as stack:
        services = {}
        for contender, path in exported.items():
            log = path.parent / f"{path.name}.log"
            service = client.Service(path, log, limits)
            stack.callback(service.stop)
            prompt = models.prompt_of(length, sizes["vocabulary_size"])
            # the first session of a service is the slowest
            client.drive(service.port, [prompt], options.new_tokens)
            services[contender] = service
        for count in sorted(options.sessions):
            prompts = [
                models.prompt_of(length, sizes["vocabulary_size"], seed)
                for seed in range(count)
            ]
            rounds = {contender: [] for contender in services}
            for _ in range(options.rounds):
                for contender, service in services.items():
                    times = client.drive(service.port, prompts, options.new_tokens)
                    rounds[contender].append(summary(times))
                    print(length, count, contender, rounds[contender][-1], flush=True)
            for contender, found in rounds.items():
                row = {"contender": contender, "prompt_length": length}
                row |= {"sessions": count, "state_bytes": bytes_of[contender]}
                yield {**row, "rounds": found}


def called(exported, length, sizes, options):
    """Yields rows that take turns, with signatures called without HTTP."""
    for count in options.sessions:
        shared = {
            "environment": "serving",
            "batch": count,
            "prompt_length": length,
            "new_tokens": min(options.new_tokens, MOST_STEPS),
            "vocabulary_size": sizes["vocabulary_size"],
        }
        yield [
            turns.row({"contender": contender, "folder": str(path), **shared})
            for contender, path in exported.items()
        ]


def summary(sessions):
    """Returns speed and latency of concurrent sessions, `(sent, arrivals)` in seconds.

    Speed is tokens a second of all sessions, including the time of prompts. Latencies
    are percentiles of the time between tokens, and from request to first token.
    """
    sent = [at for at, _ in sessions]
    arrivals = [times for _, times in sessions]
    took = max(times[-1] for times in arrivals) - min(sent)
    between = np.concatenate([np.diff(times) for times in arrivals])
    first = [times[0] - at for at, times in sessions]
    found = {"tokens_per_second": sum(map(len, arrivals)) / took}
    for name, values in (("between", between), ("first", first)):
        for percent in (50, 99):
            found[f"{name}_p{percent}"] = float(np.percentile(values, percent))
    return found


def report(results):
    libraries = tables.libraries(results["versions"])
    sizes = ", ".join(f"{name} {value}" for name, value in results["sizes"].items())
    return [
        "# The service under load",
        f"{runner.said(results['machine'], libraries)} {sizes}; "
        f"{results['new_tokens']} new tokens each. The service has one core. Medians "
        "of rounds in which both models took turns.",
        "A cache has as many places as a sequence gets tokens. Signatures change "
        "nothing in place: a step copies the cache, which a server that keeps it in "
        "the model would not.",
        served_table(results),
        "## Without HTTP",
        "The same signatures called in a loop, all sessions at once, on one core: new "
        "tokens a second, prompts not counted, and the milliseconds of a step.",
        alone_table(results),
    ]


def served_table(results):
    """Returns a table by prompt length, number of sessions and model."""
    rows = []
    for row in results["served"]:
        found = {
            name: statistics.median(one[name] for one in row["rounds"])
            for name in row["rounds"][0]
        }
        latencies = "between_p50", "between_p99", "first_p50", "first_p99"
        rows.append(
            [
                f"{row['prompt_length']:,}",
                row["sessions"],
                CONTENDERS[row["contender"]],
                tables.number(found["tokens_per_second"], 1),
                *(f"{1e3 * found[name]:,.0f}" for name in latencies),
                f"{row['state_bytes'] / 1e3:,.0f}",
            ]
        )
    header = ["prompt", "sessions", "", "tokens/s, prompts included"]
    header += ["ms between tokens, p50", "p99", "ms to the first, p50", "p99"]
    return tables.table([*header, "kB of a state"], rows)


def alone_table(results):
    """Returns a table of both models, with a row for each prompt length and batch."""
    rows = []
    for (length, batch), same in tables.by(results["alone"], "prompt_length", "batch"):
        steps = {row["contender"]: seconds_of_step(row) for row in same}
        cells = []
        for name in CONTENDERS:
            step = steps[name]
            cells.append(tables.number(step and batch / step, 1))
            cells.append(tables.number(step and 1e3 * step))
        times = tables.ratio(steps["key-value cache"], steps["performer"])
        rows.append([f"{length:,}", batch, *cells, tables.number(times)])
    columns = [
        f"{CONTENDERS[name]}, {what}" for name in CONTENDERS for what in ("/s", "ms")
    ]
    return tables.table(["prompt", "sessions", *columns, "times the cache"], rows)


def seconds_of_step(row):
    return row["times"] and tables.median(row) / row["new_tokens"] or None


if __name__ == "__main__":
    main()
