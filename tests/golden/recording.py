"""Numbers that the golden test compares, their files, and the comparison.

An array of more than 24 numbers is kept as a sketch: each number, with a random sign,
is added to one of 24 sums. Two sketches are as far apart as their arrays, up to a
factor near 1.
"""

import json
import pathlib

import keras
import numpy as np
import tensorflow as tf

from tests.golden import layer_cases, model_cases

CASES = {
    **{name: case.numbers for name, case in layer_cases.CASES.items()},
    "draws": layer_cases.draws,
    **model_cases.CASES,
}
FOLDER = pathlib.Path(__file__).parent / "recorded"
SKETCH_SIZE = 24


def compute(name):
    """Returns the numbers of a configuration, a dict of NumPy arrays by name."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    numbers = {key: _as_numpy(x) for key, x in CASES[name]().items()}
    for key, array in numbers.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}, {key}: not all numbers are finite.")
    return numbers


def _as_numpy(x):
    x = tf.convert_to_tensor(x)
    # files of NumPy have no bfloat16; float32 holds all its values
    return np.asarray(tf.cast(x, "float32") if x.dtype == "bfloat16" else x)


def sketch(array):
    """Returns an array as at most 24 float64 numbers."""
    values = np.ravel(array).astype("float64")
    if values.size <= SKETCH_SIZE:
        return values
    random = np.random.RandomState(values.size)
    sums = random.randint(SKETCH_SIZE, size=values.size)
    signed = values * random.choice([-1.0, 1.0], size=values.size)
    sketched = np.bincount(sums, weights=signed, minlength=SKETCH_SIZE)
    # rounded to the array's dtype, which halves the file
    return sketched.astype(array.dtype).astype("float64")


def difference(a, b):
    """Returns |a - b| / |b|, with norms over all numbers; 0 if both are 0."""
    a, b = np.ravel(a).astype("float64"), np.ravel(b).astype("float64")
    if a.shape != b.shape:
        return float("inf")
    norm = np.linalg.norm(a - b)
    return norm / np.linalg.norm(b) if norm else 0.0


def save(path, numbers):
    """Writes a dict of dicts of arrays, with one file entry for each inner dict."""
    index, joined = {}, {}
    for name, arrays in numbers.items():
        index[name] = {key: np.size(array) for key, array in arrays.items()}
        joined[name] = np.concatenate([np.ravel(x) for x in arrays.values()])
    np.savez_compressed(path, index=json.dumps(index), **joined)


def load(path):
    """Loads the result of `save`."""
    with np.load(path) as file:
        index = json.loads(str(file["index"]))
        return {
            name: dict(zip(sizes, np.split(file[name], np.cumsum([*sizes.values()]))))
            for name, sizes in index.items()
        }
