"""Files of recorded numbers, and the comparison with them.

An array of more than 24 numbers is kept as a sketch: each number, with a random sign,
is added to one of 24 sums. Two sketches are as far apart as their arrays, up to a
factor near 1.
"""

import json
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "recorded"
SKETCH_SIZE = 24


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
