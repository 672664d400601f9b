"""All numbers equal the numbers from before the package was rebuilt.

`python -m tests.golden --help` names the recorded commit.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.golden import definitions, saved_models
from tests.golden.recording import CASES, FOLDER, compute, difference, load, sketch

RECORDED = load(FOLDER / "numbers.npz")
ROUNDING = load(FOLDER / "rounding.npz")
SAVED = load(FOLDER / "saved_models.npz")
WEIGHTS = json.loads((FOLDER / "weights.json").read_text())

# Norms of differences relative to norms of the recorded arrays.
BOUND = 1e-6
# Some sums cancel. If a result moves by r when each input and weight moves by one unit
# in the last place, a machine that adds in another order may differ as much: matrix
# products of SSE instead of AVX-512 differed by up to 1.3 r.
TIMES_ROUNDING = 2
# float64 has digits to spare, however sums cancel.
FLOAT64 = 1e-11
# One unit in the last place.
HALF_PRECISION = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
# CPUs without bfloat16 round all partial sums of a matrix product.
ROUNDED_SUMS = 2.0**-4


def bound(name, key):
    for dtype, unit in HALF_PRECISION.items():
        if dtype in name:
            return unit if dtype == "float16" or sums_are_float32() else ROUNDED_SUMS
    if "float64" in name:
        return FLOAT64
    return max(BOUND, TIMES_ROUNDING * ROUNDING[name][key].item())


def sums_are_float32():
    """Returns `True` if TensorFlow rounds products of bfloat16 matrices only once."""
    rows = np.random.RandomState(0).standard_normal((2, 64, 64))
    one, other = tf.cast(rows, "bfloat16")
    product = tf.cast(tf.matmul(one, other), "float32")
    exact = tf.matmul(tf.cast(one, "float32"), tf.cast(other, "float32"))
    return difference(product, exact) < 2.0**-9


def assert_same(arrays, recorded, bound):
    """Compares names, order and values of two dicts; `bound` is a function of names."""
    assert list(arrays) == list(recorded)
    too_far = {
        key: f"{distance:.1e} > {bound(key):.1e}"
        for key, array in arrays.items()
        if not (distance := difference(sketch(array), recorded[key])) <= bound(key)
    }
    assert too_far == {}


def test_every_configuration_is_recorded():
    assert list(RECORDED) == list(ROUNDING) == list(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_numbers(name):
    recorded = RECORDED[name]
    assert_same(compute(name), recorded, lambda key: bound(name, key))


@pytest.mark.parametrize("name", saved_models.MAKE)
def test_saved_models_and_weights_compute_the_same(name):
    assert saved_models.weights(saved_models.make(name)) == WEIGHTS[name]
    model = saved_models.make(name, seed=2)
    model.load_weights(FOLDER / f"{name}.weights.h5")
    for loaded in (model, keras.saving.load_model(FOLDER / f"{name}.keras")):
        found = saved_models.outputs(name, loaded)
        assert_same(found, SAVED[name], lambda key: BOUND)


def test_a_number_that_changes_is_noticed():
    name, key = "two blocks", "gradient query"
    array = compute(name)[key].copy()
    array[0, 17, 1] *= 1.01
    moved = difference(sketch(array), RECORDED[name][key])
    assert moved > 10 * bound(name, key)


def test_definitions_of_all_layers_are_recorded_ones():
    recorded = json.loads(definitions.FILE.read_text())
    found = definitions.all_definitions()
    assert list(found) == list(recorded)
    changed = [name for name in found if found[name] != recorded[name]]
    if changed:
        assert found[changed[0]] == recorded[changed[0]], changed
