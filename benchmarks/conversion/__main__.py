"""Measures what trained models lose when linear attention replaces theirs.

    python -m benchmarks.conversion

Downloads wheels that are missing into `--output`: rxnmapper (3 MB) and antiberty
(97 MB), which hold trained weights under the MIT licence. No wheel is installed or run.
Loads the weights into Keras models, measures the loss of masked tokens in sequences
from these packages with exact attention and with each row's, and writes `tables.md`.
`--rows` and `--models` select some.
"""

import datetime
import os
import time

import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.conversion import scores
from benchmarks.conversion.sources import SOURCES
from benchmarks.tables import table


def main(argv=None):
    more = dict(models=(*SOURCES,), rows=(*scores.ROWS,), workers=2)
    more |= dict(output=runner.RUNS / "conversion")
    choices = {"models": SOURCES, "rows": scores.ROWS}
    options = runner.options(__doc__, argv, choices, **more)
    options.output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    sources = {name: SOURCES[name](options.output) for name in options.models}
    rows = list(dict.fromkeys([scores.EXACT, *options.rows]))
    found = measure(sources, rows, options)
    sections = [section(source, found[name]) for name, source in sources.items()]
    head = heading(time.perf_counter() - start)
    print(runner.write_page(options.output, [head, *sections]))


def measure(sources, rows, options):
    """Returns a dict for each package, from rows to losses and seconds."""
    # the exact model first, as it checks the weights; then the slowest row
    first = scores.EXACT, scores.CALIBRATED
    jobs = [
        {"package": package, "name": name, "folder": options.output}
        for name in sorted(rows, key=lambda x: [x != name for name in first])
        for package in sources
    ]
    # oneDNN halves the time of small matrix products; it is the default on Intel CPUs
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    found = {}
    for package, name, *made in runner.results(scores.measured, jobs, options.workers):
        found[package, name] = made
        print(f"{package}, {name}: {made[0].mean():.3f}", flush=True)
        if name == scores.EXACT:
            scores.check_exact(sources[package], made[0].mean())
    return {
        package: {name: found[package, name] for name in rows} for package in sources
    }


def section(source, found):
    """Returns the section of a model: losses and seconds by row, exact first."""
    given = scores.questions(source)
    families = given.families_of_tokens()
    exact, _ = found[scores.EXACT]
    lines = []
    for name, (losses, seconds) in found.items():
        lost = losses - exact
        error = scores.standard_error(lost, families)
        means = f"{losses.mean():.3f}", f"{lost.mean():+.3f}", f"{error:.3f}"
        lines.append([name, *means, f"{seconds:.0f}"])
    heads, width = source.config["num_attention_heads"], source.config["hidden_size"]
    return f"""\
## {source.name}

{source.config["num_hidden_layers"]} layers, {heads} heads, head size \
{width // heads}; {given.masked.sum()} masked tokens of \
{len(source.sequences)} sequences of {min(map(len, source.sequences))} to \
{max(map(len, source.sequences))} tokens, of which \
{len(np.unique(given.families))} have little in common. Random features are of one draw.

{table(["attention", "NLL", "lost", "± s.e.", "CPU seconds"], lines)}"""


def heading(seconds):
    return f"""\
# What trained models lose

The mean loss -log p (nats) of masked tokens when other attention takes the place of
that in a trained model, in all its layers, without training. "window" sees the keys
that are at most {scores.WINDOW - 1} places off; "window alone" is
`LocalAttention`. What a row loses is paired with the exact model token by token;
standard errors take sequences that have much in common as one, and there are few.

{runner.machine()}, TensorFlow {tf.__version__}; {seconds:.0f} s in all; written
{datetime.date.today()}."""


if __name__ == "__main__":
    main()
