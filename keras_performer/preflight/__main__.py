"""Devices of this machine, and known problems with them.

    python -m keras_performer.preflight        # versions, devices, what is wrong
    python -m keras_performer.preflight --tpu  # the same, and a TPU must be there

The exit status is 0 if nothing is wrong, 1 if something is, and 2 for wrong arguments.
What is installed is judged by its version before anything is imported. Only `--tpu`
starts a device, as training does: not while something else uses that TPU.
"""

import argparse
import importlib.metadata
import os
import platform
import sys

from keras_performer import __version__, preflight
from keras_performer.preflight.problems import TENSORFLOWS

DISTRIBUTIONS = ("keras", *TENSORFLOWS, "libtpu", "tf-keras", "jax")
LONGEST = 86400  # TensorFlow may take no longer


def main(argv=None):
    """Prints versions, devices and problems; returns 1 if there are any, else 0."""
    parser = argparse.ArgumentParser(
        "python -m keras_performer.preflight", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--tpu",
        nargs="?",
        const="local",
        type=_name,
        metavar="NAME",
        help="require this TPU",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=300,
        help="seconds that TensorFlow may take",
    )
    options = parser.parse_args(argv)

    versions = installed()
    found = {"python": platform.python_version(), "keras_performer": __version__}
    for name, version in (found | versions).items():
        print(f"{name:16} {version}", flush=True)
    problems = [
        *preflight.package_problems(versions, options.tpu),
        *preflight.environment_problems(),
    ]
    if not problems:
        devices, problems = preflight.look_for_devices(
            os.environ, options.tpu, options.timeout
        )
        print(f"{'devices':16} {devices}")
    for problem in problems:
        print(f"\nproblem: {problem}")
    if not problems:
        print("\nNo known problem.")
    return 1 if problems else 0


def _name(text):
    if not text.strip():
        raise argparse.ArgumentTypeError(
            "must be the name of a TPU; leave out the name for that of this machine, "
            f"and all of --tpu for none. Received: {text!r}"
        )
    return text


def _seconds(text):
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST:  # nor NaN
        raise argparse.ArgumentTypeError(
            f"must be a positive number of seconds, at most {LONGEST} (a day). "
            f"Received: {text!r}"
        )
    return seconds


def installed():
    """The version of everything that decides whether the package can run."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return versions


if __name__ == "__main__":
    sys.exit(main())
