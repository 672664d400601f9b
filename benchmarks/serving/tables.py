"""What a load test found, as numbers and as Markdown."""

import statistics

import numpy as np

from benchmarks import tables
from benchmarks.results import ratio
from benchmarks.serving.models import CONTENDERS

NAMES = {"performer": "ours, state of sums", "key-value cache": "exact, cache"}


def summary(sessions):
    """Speed and latency of sessions that ran at once.

    Args:
        sessions: list of `(sent, arrivals)`, seconds of one clock.

    Returns:
        Dict of floats: `tokens_per_second` of all, prompts included; `between_p50` and
        `between_p99`, seconds from a token of a session to its next; `first_p50` and
        `first_p99`, seconds from a request to its first token.
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
    machine, versions = results["machine"], results["versions"]
    described = (
        f"{machine['cpu']}, {machine['cores']} cores; load "
        f"{machine['load_at_start']:.1f} before, at most {machine['highest_load']:.1f} "
        "meanwhile"
    )
    sizes = ", ".join(f"{name} {value}" for name, value in results["sizes"].items())
    parts = [
        "# The service under load",
        f"`{machine['command']}`, {machine['date']}. {described}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f". {sizes}; {results['new_tokens']} new tokens each. The service has one "
        "core. Medians of rounds in which both models took turns.",
        "A cache has as many places as a sequence gets tokens. Signatures change "
        "nothing in place: a step copies the cache, which a server that keeps it in "
        "the model would not.",
        served(results),
        "## Without HTTP",
        "The same signatures called in a loop, all sessions at once, on one core: new "
        "tokens a second, prompts not counted, and the milliseconds of a step.",
        alone(results),
    ]
    return "\n\n".join(parts) + "\n"


def served(results):
    """A row for each prompt length, number of sessions and model.

    Processor time tells what a token costs where other programs ran meanwhile, too.
    """
    rows = []
    for row in results["served"]:
        found = {
            name: statistics.median(one[name] for one in row["rounds"])
            for name in row["rounds"][0]
            if row["rounds"][0][name] is not None
        }
        growth, used = found.get("growth_bytes"), found.get("processor_seconds")
        tokens = row["sessions"] * results["new_tokens"]
        rows.append(
            [
                f"{row['prompt_length']:,}",
                row["sessions"],
                NAMES[row["contender"]],
                tables.number(found["tokens_per_second"], 1),
                *(
                    f"{1e3 * found[name]:,.0f}"
                    for name in ("between_p50", "between_p99", "first_p50", "first_p99")
                ),
                tables.number(used and 1e3 * used / tokens, 1),
                f"{row['state_bytes'] / 1e3:,.0f}",
                tables.number(growth and growth / 1e3 / row["sessions"], 0),
            ]
        )
    header = (
        "prompt",
        "sessions",
        "",
        "tokens/s, prompts included",
        "ms between tokens, p50",
        "p99",
        "ms to the first, p50",
        "p99",
        "ms of processor a token",
        "kB of a state",
        "kB a session that the process grew by",
    )
    return tables.table(header, rows)


def alone(results):
    """Both models side by side, a row for each prompt length and batch."""
    steps = {}  # seconds of one
    for row in results["alone"]:
        if row["times"]:
            place = row["prompt_length"], row["batch"], row["contender"]
            steps[place] = statistics.median(row["times"]) / row["new_tokens"]
    rows = []
    for length, batch in dict.fromkeys(place[:2] for place in steps):
        both = [steps.get((length, batch, name)) for name in CONTENDERS]
        cells = []
        for step in both:
            cells += [
                tables.number(step and batch / step, 1),
                tables.number(step and 1e3 * step),
            ]
        ours, cache = both
        rows.append([f"{length:,}", batch, *cells, tables.number(ratio(cache, ours))])
    columns = [f"{NAMES[name]}, {what}" for name in CONTENDERS for what in ("/s", "ms")]
    return tables.table(["prompt", "sessions", *columns, "times the cache"], rows)
