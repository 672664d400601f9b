"""Writes the results of another checkout, for comparison, into `recorded`.

    python -m tests.golden numbers --package ../old_checkout
    python -m tests.golden models --package ../old_checkout
    python -m tests.golden definitions

Definitions of layers (signatures, configs, dtypes and weights) come from commit
1c9ea85 and change with each new argument: write them again, and read the difference.
The other files come from commit aa2d4ca, the last one before `AttentionLayer`, on a CPU
(x86-64 with AVX-512, 2 cores) with TensorFlow 2.21.0. The numbers come from Keras
3.15.1. The saved models come from Keras 3.10.0, the oldest supported version, as
versions of Keras do not read files of later ones. There are no numbers of operations,
as `keras_performer/ops/reference.py` defines them. Write the files again only for
numbers that are meant to change, and say which and why.
"""

import argparse
import json
import sys

import numpy as np

# Half precision comes close; other dtypes stay below 2e-5.
LARGEST_ROUNDING = 1e-3


def write_numbers(word):
    """Writes sketches of all arrays, and how far rounding moves them.

    Configurations without the word in their name keep their arrays.
    """
    from tests.golden import recording

    sketches, moved = {}, {}
    for name in recording.CASES:
        if word in name:
            print(name, file=sys.stderr, flush=True)
            arrays = recording.compute(name)
            sketches[name] = {k: recording.sketch(x) for k, x in arrays.items()}
            moved[name] = rounding(name, arrays)
    for file, new in ("numbers.npz", sketches), ("rounding.npz", moved):
        path = recording.FOLDER / file
        every = {**(recording.load(path) if word else {}), **new}
        recording.save(path, {name: every[name] for name in recording.CASES})


def rounding(name, arrays, seeds=(1, 2, 3)):
    """Returns the largest change of each array by rounding of inputs and weights."""
    from tests.golden import numbers, recording

    moved = dict.fromkeys(arrays, np.float32(0))
    if "float64" in name:
        return moved  # its bound does not depend on rounding
    for seed in seeds:
        with numbers.moved_by_rounding(seed):
            others = recording.compute(name)
        for key, array in arrays.items():
            distance = np.float32(recording.difference(others[key], array))
            moved[key] = max(moved[key], distance)
            if distance > LARGEST_ROUNDING:  # a comparison would tell nothing
                raise ValueError(f"{name}, {key}: rounding moves it by {distance:.1e}.")
    return moved


def write_models():
    """Writes files of models, their outputs, and the names of their weights."""
    from tests.golden import recording, saved_models

    folder, outputs, weights = recording.FOLDER, {}, {}
    for name in saved_models.MAKE:
        model = saved_models.make_to_save(name)
        weights[name] = saved_models.weights(model)
        model.save(folder / f"{name}.keras")
        model.save_weights(folder / f"{name}.weights.h5")
        arrays = saved_models.outputs(name, model)
        outputs[name] = {key: recording.sketch(x) for key, x in arrays.items()}
    recording.save(folder / "saved_models.npz", outputs)
    (folder / "weights.json").write_text(json.dumps(weights, indent=1))


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["numbers", "models", "definitions"])
    parser.add_argument("--package", default=".", help="folder of the other checkout")
    parser.add_argument("--word", default="", help="of the configurations' names")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.package)
    if arguments.what == "numbers":
        write_numbers(arguments.word)
    elif arguments.what == "definitions":
        from tests.golden import definitions

        definitions.write()
    else:
        write_models()


if __name__ == "__main__":
    main()
