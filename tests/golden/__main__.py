"""Writes what the test compares with, of another checkout, into `recorded`.

    python -m tests.golden numbers --package ../old_checkout
    python -m tests.golden models --package ../old_checkout

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


def write_numbers(word):
    """Writes sketches of all arrays, and how far rounding moves them.

    Those of configurations whose name has not the word stay as they are.
    """
    from tests.golden import configurations

    folder, numbers = recording.FOLDER, {}
    for name in configurations.CASES:
        if word in name:
            print(name, file=sys.stderr, flush=True)
            numbers[name] = configurations.compute(name)
    made = {
        "numbers.npz": recording.sketches(numbers),
        "rounding.npz": configurations.rounding(numbers),
    }
    for file, new in made.items():
        every = {**(recording.load(folder / file) if word else {}), **new}
        in_order = {name: every[name] for name in configurations.CASES}
        recording.save(folder / file, in_order)


def write_models():
    """Writes files of models, what they compute, and the names of their weights."""
    from tests.golden import saved_models

    folder, outputs, weights = recording.FOLDER, {}, {}
    for name in saved_models.MAKE:
        model = saved_models.make_to_save(name)
        weights[name] = saved_models.weights(model)
        model.save(folder / f"{name}.keras")
        model.save_weights(folder / f"{name}.weights.h5")
        outputs[name] = saved_models.outputs(name, model)
    recording.save(folder / "saved_models.npz", recording.sketches(outputs))
    (folder / "weights.json").write_text(json.dumps(weights, indent=1))


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["numbers", "models"])
    parser.add_argument("--package", default=".", help="folder of the other checkout")
    parser.add_argument("--word", default="", help="of the configurations' names")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.package)
    if arguments.what == "numbers":
        write_numbers(arguments.word)
    else:
        write_models()


if __name__ == "__main__":
    main()
