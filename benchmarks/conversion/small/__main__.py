"""What small models, trained here, keep when they are converted.

    python -m benchmarks.conversion.small

Trains models of two blocks with exact attention: one of the bytes of Python sources,
2,048 at once, and one on associative recall over 512 tokens, of which a window of 64
alone knows nothing. Asks each with other attention in the place of its own: that of the
controls, converted, calibrated, after `transfer_attention`, and after some steps of
ordinary training from each of these. Writes a page and a curve of each into `--output`;
the weights of the exact models and what was found for each feature map stay there for
the next time.
"""

import argparse
import functools
import json
import pathlib

from benchmarks.conversion.small import converted, report
from benchmarks.conversion.small.cases import cases, exact_model
from benchmarks.conversion.small.results import Result, asked, further_trained

FEATURE_MAPS = "softmax", "taylor"


def main(argv=None):
    """Reads the command line, measures what is missing, and writes the pages."""
    options = make_parser().parse_args(argv)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        measure(cases()[name], options)


def measure(case, options):
    """Trains and asks what is missing of a case, and writes its page."""
    folder = options.output
    exact = exact_model(case, folder)
    parts = {
        "controls": lambda: converted.controls(case, exact, options.steps),
        **{
            feature_map: functools.partial(
                converted.converted, case, exact, feature_map, options.steps
            )
            for feature_map in options.feature_maps
        },
    }
    found = []
    for name, ways in parts.items():
        path = folder / f"{case.name}-{name}.json"
        if not path.exists():
            path.write_text(json.dumps(results(case, ways(), options)))
        found += [Result(*row) for row in json.loads(path.read_text())]
    report.draw(found, folder / f"{case.name}.png")
    text = report.page(case, found, options)
    (folder / f"{case.name}.md").write_text(text + "\n")
    print(text)


def results(case, ways, options):
    """All `Result` of what `converted` or `controls` yields."""
    found = []
    for name, model, steps, seconds, trains in ways:
        found.append(asked(case, name, model, steps, seconds))
        if trains:
            found += further_trained(case, found[-1], model, options.further_steps)
    return found


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conversion.small",
        description=__doc__.splitlines()[0],
    )
    parser.add_argument("--cases", nargs="+", choices=cases(), default=list(cases()))
    parser.add_argument(
        "--feature-maps", nargs="+", choices=FEATURE_MAPS, default=FEATURE_MAPS
    )
    parser.add_argument("--steps", type=int, default=200, help="of the transfer")
    parser.add_argument(
        "--further-steps", nargs="+", type=int, default=[10, 20, 40], help="of training"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("runs/conversion")
    )
    return parser


if __name__ == "__main__":
    main()
