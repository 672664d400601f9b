"""What trained models lose when linear attention takes the place of theirs.

    python -m benchmarks.conversion

Downloads the wheels of rxnmapper (3 MB) and antiberty (97 MB), which hold trained
weights under the MIT licence, into `--output`, if they are not there; nothing of them
is installed or run. Reads the weights into Keras models, has each guess masked tokens
of the sequences in these packages, with its exact attention and with that of each row,
and writes `tables.md`.
"""

import argparse
import pathlib
import time

from benchmarks.conversion import pool, report, rows, scores
from benchmarks.conversion.models import MODELS


def main(argv=None):
    """Reads the command line, and writes and prints the tables."""
    options = make_parser().parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    sources = {name: MODELS[name].load(options.output) for name in options.models}
    start = time.perf_counter()
    names = [rows.EXACT]
    names += [name for name in options.rows if name != rows.EXACT]
    jobs = [
        (package, name, options.draws, options.output)
        for package in sources
        for name in names
    ]
    results = pool.results(jobs, options.workers)
    sections = []
    for source in sources.values():
        families = scores.questions(source).families_of_tokens()
        found = []
        for name in names:
            losses, seconds = next(results)
            if name == rows.EXACT:
                exact = losses
                scores.check_exact(source, exact.mean())
            found.append(scores.score(name, losses, exact, families, seconds))
            print(f"{source.name}, {name}: {found[-1].nll:.3f}", flush=True)
        sections.append(report.section(source, found, options.draws))
    text = report.page(sections, time.perf_counter() - start)
    (options.output / "tables.md").write_text(text + "\n")
    print(text)


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conversion", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    names = [row.name for row in rows.ROWS]
    parser.add_argument(
        "--rows", nargs="+", choices=names, default=names, help="beside the exact one"
    )
    parser.add_argument(
        "--draws", type=int, default=2, help="of random features; their mean counts"
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
