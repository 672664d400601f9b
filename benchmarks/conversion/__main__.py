"""Measures what trained models lose when linear attention replaces theirs.

    python -m benchmarks.conversion
    python -m benchmarks.conversion --full     # further rows; some hours on two cores

Downloads the wheels of rxnmapper (3 MB) and antiberty (97 MB), which hold trained
weights under the MIT licence, into `--output`, if they are not there, and for rows of
more data three others (27 MB) whose descriptions have reactions; nothing of them is
installed or run. Reads the weights into Keras models, has each guess masked tokens
of the sequences in these packages, with its exact attention and with that of each row,
and writes `tables.md`.
"""

import argparse
import datetime
import os
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks import machine, processes
from benchmarks.conversion import scores
from benchmarks.conversion.sources import SOURCES
from benchmarks.tables import table


def main(argv=None):
    """Reads the command line, and writes and prints the tables."""
    names = [row.name for row in scores.ROWS + scores.FURTHER]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conversion", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--models", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--full", action="store_true", help="further rows, slow ones")
    parser.add_argument("--rows", nargs="+", choices=names, help="beside the exact one")
    parser.add_argument(
        "--draws", type=int, default=1, help="of random features; their mean counts"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="rows at once, each on one core; 0 for one after another on all cores",
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/conversion")
    )
    options = parser.parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    chosen = options.rows or names[: None if options.full else len(scores.ROWS)]
    rows = [scores.EXACT, *(name for name in chosen if name != scores.EXACT)]
    sources = {name: SOURCES[name](options.output) for name in options.models}
    found = measure(sources, rows, options)
    sections = []
    for package, source in sources.items():
        of_rows = {name: found[package, name] for name in rows if found[package, name]}
        sections.append(section(source, of_rows, options.draws))
    text = page(sections, time.perf_counter() - start)
    (options.output / "tables.md").write_text(text + "\n")
    print(text)


def measure(sources, rows, options):
    """Losses and seconds by family, in a dict for each package and row."""
    found = {(package, name): {} for package in sources for name in rows}
    # the exact one first, without which nothing else means anything; then the longest
    order = sorted(rows[1:], key=lambda name: not scores.named(name).fit)
    for source in sources.values():
        if source.further and any(scores.named(name).further for name in rows):
            source.further()  # downloaded here, once for all workers
    jobs = [
        {
            "package": package,
            "name": name,
            "family": family,
            "num_draws": options.draws,
            "folder": options.output,
        }
        for name in [scores.EXACT, *order]
        for package, source in sources.items()
        for family in scores.parts_of(scores.named(name), source)
    ]
    # products of small matrices take half the time; Intel's CPUs have it so by default
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    progress = keras.utils.Progbar(len(jobs), unit_name="part")
    for package, name, family, losses, seconds in processes.results(
        scores.measured, jobs, options.workers
    ):
        found[package, name][family] = losses, seconds
        progress.add(1)
        if name == scores.EXACT:
            scores.check_exact(sources[package], losses.mean())
    return found


def section(source, found, num_draws):
    """The table of a model.

    Args:
        source: `Pretrained`.
        found: dict of rows to dicts as of `measure`, the exact one first.
        num_draws: int.
    """
    given = scores.questions(source)
    families = given.families_of_tokens()
    losses_of = {
        name: scores.joined({part: x for part, (x, _) in parts.items()}, given)
        for name, parts in found.items()
    }
    lines, compared = [], ""
    for name, losses in losses_of.items():
        lost, error = scores.paired(losses, losses_of[scores.EXACT], families)
        seconds = sum(seconds for _, seconds in found[name].values())
        cells = f"{losses.mean():.3f}", f"{lost:+.3f}", f"{error:.3f}", f"{seconds:.0f}"
        lines.append([name, *cells])
        other = scores.named(name).beside
        if other in losses_of:
            mean, error = scores.paired(losses, losses_of[other], families)
            compared += f"\n\n{name} beside {other}: {mean:+.3f} ± {error:.3f} "
            compared += f"({-mean / error:.1f} s.e. better)."
    config = source.config
    return f"""\
## {source.name}

{config.num_layers} layers of {config.num_heads} heads of \
{config.hidden_dim // config.num_heads}; {given.masked.sum()} masked tokens of \
{len(source.sequences)} sequences of {min(map(len, source.sequences))} to \
{max(map(len, source.sequences))} tokens, of which \
{len(np.unique(given.families))} have little in common. Draws of random features, of \
which rows are means: {num_draws}.

{table(["attention", "NLL", "lost", "± s.e.", "CPU seconds"], lines)}{compared}"""


def page(sections, seconds):
    """All of it; `seconds` are what it took."""
    head = f"""\
# What trained models lose

The mean loss -log p (nats) of masked tokens when other attention takes the place of
that in a trained model, in all its layers, without training. "window" sees the keys
that are at most {scores.WINDOW - 1} places off. "transferred" has \
{scores.TRANSFER_STEPS}
steps of `transfer_attention` after calibration, on the same tokens; "more data" adds
reactions from the descriptions of other packages to these. What a row loses is paired
with the exact model token by token; standard errors take sequences that have much in
common as one, and there are few.

{machine.name()}, TensorFlow {tf.__version__}; {seconds:.0f} s in all; written
{datetime.date.today()}."""
    return "\n\n".join([head, *sections])


if __name__ == "__main__":
    main()
