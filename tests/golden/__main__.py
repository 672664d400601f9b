"""Records what a checkout computes, and compares two recordings.

Two checkouts bit by bit, on one machine (the second one by the name of its folder, as
Python finds the package beside this file otherwise):

    python -m tests.golden record new.npz
    python -m tests.golden record old.npz --package ../old_checkout
    python -m tests.golden compare new.npz old.npz

What the test compares with, in `tests/golden/recorded`, is written by

    python -m tests.golden remake --package ../old_checkout
    python -m tests.golden save --package ../old_checkout

It was made of commit aa2d4ca, the last one before `AttentionLayer`, on a CPU (x86-64
with AVX-512, 2 cores) with TensorFlow 2.21.0: the numbers with Keras 3.15.1, the saved
models with Keras 3.10.0, the oldest that is allowed, as none reads files of later ones.
Operations have no numbers here: `keras_performer/ops/reference.py` says what they are.
Make it anew only for numbers that are meant to change, and say which and why.
"""

import argparse
import json
import sys

from tests.golden import recording


def record(path, word):
    """Writes all arrays, in full, of configurations whose name has the word."""
    recording.save(path, _computed(word))


def remake(word):
    """Writes sketches of all arrays, and how far rounding moves them.

    Those of configurations whose name has not the word stay as they are.
    """
    from tests.golden import configurations

    folder, numbers = recording.FOLDER, _computed(word)
    folder.mkdir(exist_ok=True)
    made = {
        "numbers.npz": recording.sketches(numbers),
        "rounding.npz": configurations.rounding(numbers),
    }
    for file, new in made.items():
        every = {**(recording.load(folder / file) if word else {}), **new}
        recording.save(
            folder / file, {name: every[name] for name in configurations.CASES}
        )


def save():
    """Writes files of models, what they compute, and the names of their weights."""
    from tests.golden import saved_models

    folder, outputs, weights = recording.FOLDER, {}, {}
    folder.mkdir(exist_ok=True)
    for name in saved_models.MAKE:
        model = saved_models.make_to_save(name)
        weights[name] = saved_models.weights(model)
        model.save(folder / f"{name}.keras")
        model.save_weights(folder / f"{name}.weights.h5")
        outputs[name] = saved_models.outputs(name, model)
    recording.save(folder / "saved_models.npz", recording.sketches(outputs))
    (folder / "weights.json").write_text(json.dumps(weights, indent=1))


def compare(new_path, old_path):
    """Prints every array that differs, the largest difference first."""
    new, old = recording.load(new_path), recording.load(old_path)
    equal, differences, missing = 0, [], []
    for name in {**new, **old}:
        for key in {**new.get(name, {}), **old.get(name, {})}:
            a, b = (numbers.get(name, {}).get(key) for numbers in (new, old))
            if a is None or b is None:
                missing.append(f"{name}: {key}")
            elif a.dtype == b.dtype and a.tobytes() == b.tobytes():
                equal += 1
            else:
                differences.append((recording.difference(a, b), f"{name}: {key}"))
    for distance, what in sorted(differences, reverse=True):
        print(f"{distance:.1e}  {what}")
    for what in missing:
        print(f"only in one of them  {what}")
    print(
        f"{equal} arrays are equal bit by bit, {len(differences)} are not, "
        f"{len(missing)} are in one recording only"
    )


def _computed(word):
    from tests.golden import configurations

    numbers = {}
    for name in configurations.CASES:
        if word in name:
            print(name, file=sys.stderr, flush=True)
            numbers[name] = configurations.compute(name)
    return numbers


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="compute, and write all arrays")
    recorder.add_argument("path")
    remaker = commands.add_parser("remake", help="write the numbers of the test")
    saver = commands.add_parser("save", help="write the saved models of the test")
    for command in (recorder, remaker, saver):
        command.add_argument("--package", help="folder of another checkout")
    for command in (recorder, remaker):
        command.add_argument("--word", default="", help="of the configurations' names")
    comparer = commands.add_parser("compare", help="compare two files of `record`")
    comparer.add_argument("new")
    comparer.add_argument("old")
    arguments = parser.parse_args()
    if arguments.command == "compare":
        compare(arguments.new, arguments.old)
        return
    if arguments.package:
        sys.path.insert(0, arguments.package)
    if arguments.command == "record":
        record(arguments.path, arguments.word)
    elif arguments.command == "remake":
        remake(arguments.word)
    else:
        save()


if __name__ == "__main__":
    main()
