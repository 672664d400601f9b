"""Writes the results of another checkout, for comparison, into `recorded`.

    python -m tests.golden seeded --package ../old_checkout
    python -m tests.golden models --package ../old_checkout
    python -m tests.golden definitions

Definitions of layers (signatures, configs, dtypes and weights) come from commit
1c9ea85 and change with each new argument: write them again, and read the difference.
The numbers that seeds give come from commit bf0d0ad, on a CPU (x86-64 with AVX-512, 2
cores) with TensorFlow 2.21.0 and Keras 3.15.1. The saved models come from commit
aa2d4ca, the last one before `AttentionLayer`, and from Keras 3.10.0, the oldest
supported version, as versions of Keras do not read files of later ones. Write the files
again only for numbers that are meant to change, and say which and why.
"""

import argparse
import json
import sys


def write_seeded():
    from tests.golden import recording, seeded

    sketches = {
        name: {key: recording.sketch(x) for key, x in seeded.compute(name).items()}
        for name in seeded.CASES
    }
    recording.save(recording.FOLDER / "seeded.npz", sketches)


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


def write_definitions():
    from tests.golden import definitions

    definitions.write()


WRITERS = write_seeded, write_models, write_definitions

if __name__ == "__main__":
    writers = {one.__name__.removeprefix("write_"): one for one in WRITERS}
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=writers)
    parser.add_argument("--package", default=".", help="folder of the other checkout")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.package)  # before the writer imports the package
    writers[arguments.what]()
