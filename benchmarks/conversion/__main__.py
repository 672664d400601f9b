"""What trained models lose when linear attention takes the place of theirs.

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
import pathlib
import time

import keras

from benchmarks.conversion import pool, report, rows, scores
from benchmarks.conversion.models import MODELS


def main(argv=None):
    """Reads the command line, and writes and prints the tables."""
    options = make_parser().parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    sources = {name: MODELS[name].load(options.output) for name in options.models}
    start = time.perf_counter()
    every = rows.ROWS + rows.FURTHER if options.full else rows.ROWS
    chosen = options.rows or [row.name for row in every]
    names = [rows.EXACT, *(name for name in chosen if name != rows.EXACT)]
    # the exact one first, without which nothing else means anything; then the longest,
    # which are fitted, or stand after the others
    longest = sorted(reversed(names[1:]), key=lambda name: not rows.named(name).fit)
    order = [rows.EXACT, *longest]
    for source in sources.values():
        if source.further and any(rows.named(name).further for name in names):
            source.further()  # downloaded here, once for all workers
    jobs = [
        (package, name, part, options.draws, options.output)
        for name in order
        for package, source in sources.items()
        for part in scores.parts_of(rows.named(name), source)
    ]
    progress = keras.utils.Progbar(len(jobs), unit_name="part")
    results: dict = {}
    for job, result in zip(jobs, pool.results(jobs, options.workers)):
        package, name, part, *_ = job
        results.setdefault((package, name), {})[part] = result
        progress.add(1)
        if name == rows.EXACT:
            scores.check_exact(sources[package], result[0].mean())
    sections = []
    for package, source in sources.items():
        given = scores.questions(source)
        families = given.families_of_tokens()
        found, losses_of = [], {}
        for name in names:
            parts = results.get((package, name))
            if parts is None:  # there are no further sequences
                continue
            losses = scores.joined({part: x for part, (x, _) in parts.items()}, given)
            losses_of[name] = losses
            seconds = sum(seconds for _, seconds in parts.values())
            exact = losses_of[rows.EXACT]
            found.append(scores.score(name, losses, exact, families, seconds))
        pairs = [
            (name, other, scores.paired(losses_of[name], losses_of[other], families))
            for name in losses_of
            if (other := rows.named(name).beside) in losses_of
        ]
        sections.append(report.section(source, found, options.draws, pairs))
    text = report.page(sections, time.perf_counter() - start)
    (options.output / "tables.md").write_text(text + "\n")
    print(text)


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conversion", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--full", action="store_true", help="further rows, slow ones")
    names = [row.name for row in rows.ROWS + rows.FURTHER]
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
    return parser


if __name__ == "__main__":
    main()
