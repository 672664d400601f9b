"""Everything that the golden test compares, by name."""

import keras
import numpy as np
import tensorflow as tf

from tests.golden import layer_cases, model_cases
from tests.golden.numbers import moved_by_rounding
from tests.golden.recording import difference

# Half precision gets there; others stay below 2e-5.
LARGEST_ROUNDING = 1e-3

CASES = {
    **{name: case.numbers for name, case in layer_cases.CASES.items()},
    "draws": layer_cases.draws,
    **model_cases.CASES,
}


def compute(name):
    """The numbers of one configuration, a dict of NumPy arrays by name."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    numbers = {key: _as_numpy(x) for key, x in CASES[name]().items()}
    for key, array in numbers.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name}, {key}: not all numbers are finite.")
    return numbers


def rounding(numbers, seeds=(1, 2, 3)):
    """Largest change of each of the `numbers` by rounding of inputs and weights.

    Raises:
        ValueError: for one that rounding alone decides, which compares nothing.
    """
    zero = np.float32(0)
    moved = {name: dict.fromkeys(arrays, zero) for name, arrays in numbers.items()}
    for name, distances in moved.items():
        if "float64" in name:
            continue  # its bound does not ask
        for seed in seeds:
            with moved_by_rounding(seed):
                arrays = compute(name)
            for key, array in arrays.items():
                distance = np.float32(difference(array, numbers[name][key]))
                distances[key] = max(distances[key], distance)
        for key, distance in distances.items():
            if distance > LARGEST_ROUNDING:
                raise ValueError(f"{name}, {key}: rounding moves it by {distance:.1e}.")
    return moved


def _as_numpy(x):
    x = tf.convert_to_tensor(x)
    # files of NumPy know no bfloat16; float32 holds all its values
    return np.asarray(tf.cast(x, "float32") if x.dtype == "bfloat16" else x)
