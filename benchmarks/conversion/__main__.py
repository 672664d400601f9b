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

from benchmarks.conversion import antiberty, report, rows, rxnmapper, scores

MODELS = {module.PACKAGE: module for module in (rxnmapper, antiberty)}


def main(argv=None):
    """Reads the command line, and writes and prints the tables."""
    options = make_parser().parse_args(argv)
    start = time.perf_counter()
    options.output.mkdir(parents=True, exist_ok=True)
    wanted = [row for row in rows.ROWS if not options.rows or row.name in options.rows]
    sections = []
    for model in options.models:
        source = MODELS[model].load(options.output)
        found = []
        for score in scores.score_rows(source, wanted, options.draws):
            print(f"{source.name}, {score.name}: {score.nll:.3f}", flush=True)
            found.append(score)
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
    parser.add_argument("--rows", nargs="+", choices=names, help="beside the exact one")
    parser.add_argument(
        "--draws", type=int, default=2, help="of random features; their mean counts"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/conversion")
    )
    return parser


if __name__ == "__main__":
    main()
