"""Files, definitions and the numbers of seeds are those of earlier commits.

`python -m tests.golden --help` names the recorded commits.
"""

import json

import keras
import pytest

from tests.golden import definitions, saved_models, seeded
from tests.golden.recording import FOLDER, difference, load, sketch

SEEDED = load(FOLDER / "seeded.npz")
SAVED = load(FOLDER / "saved_models.npz")
WEIGHTS = json.loads((FOLDER / "weights.json").read_text())


def assert_same(arrays, recorded, bound):
    """Compares names, order and values of two dicts of arrays.

    The bound is of norms of differences, relative to norms of the recorded arrays.
    """
    assert list(arrays) == list(recorded)
    distances = {key: difference(sketch(x), recorded[key]) for key, x in arrays.items()}
    assert {key: x for key, x in distances.items() if not x <= bound} == {}


def test_every_configuration_is_recorded():
    assert list(SEEDED) == list(seeded.CASES)


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_gives_the_same_numbers(name):
    assert_same(seeded.compute(name), SEEDED[name], bound=1e-5)


@pytest.mark.parametrize("name", saved_models.MAKE)
def test_saved_models_and_weights_compute_the_same(name):
    assert saved_models.weights(saved_models.make(name)) == WEIGHTS[name]
    model = saved_models.make(name, seed=2)
    model.load_weights(FOLDER / f"{name}.weights.h5")
    for loaded in (model, keras.saving.load_model(FOLDER / f"{name}.keras")):
        assert_same(saved_models.outputs(name, loaded), SAVED[name], bound=1e-6)


def test_definitions_of_all_layers_are_recorded_ones():
    recorded = json.loads(definitions.FILE.read_text())
    found = definitions.all_definitions()
    assert list(found) == list(recorded)
    changed = [name for name in found if found[name] != recorded[name]]
    if changed:
        assert found[changed[0]] == recorded[changed[0]], changed
