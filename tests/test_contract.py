"""Every exported layer keeps the promises of `tests/contract.py`."""

import inspect

import keras
import pytest

import keras_performer
from tests import contract
from tests.cases import CASES
from tests.contract import PROMISES, check_layer

# tracing a model takes long, for a SavedModel and for XLA
SLOW = {contract.saved_model_gives_the_same_numbers, contract.eager_graph_and_xla_agree}
PARAMETERS = [
    pytest.param(
        promise,
        id=promise.__name__,
        marks=[pytest.mark.slow] * (promise in SLOW),
    )
    for promise in PROMISES
]


# models of several layers take as long for most promises
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] * name.startswith("lm"))
    for name in CASES
]


@pytest.mark.parametrize("promise", PARAMETERS)
@pytest.mark.parametrize("name", NAMES)
def test_layer_keeps_its_promises(name, promise):
    check_layer(CASES[name], [promise])


def test_every_exported_layer_has_a_case():
    exported = [getattr(keras_performer, name) for name in keras_performer.__all__]
    layers = keras_performer.layers
    exported += [getattr(layers, name) for name in layers.__all__]
    classes = {
        x for x in exported if inspect.isclass(x) and issubclass(x, keras.layers.Layer)
    }
    bases = {layers.AttentionLayer, layers.EmbeddingLayer, layers.MixingLayer}
    assert classes - bases == {case.layer_class for case in CASES.values()}


def test_registered_names_do_not_change():
    # files on users' disks hold these names
    names = {
        keras.saving.get_registered_name(x)
        for x in (
            keras_performer.PerformerAttention,
            keras_performer.PerformerLM,
            keras_performer.layers.ExactAttention,
            keras_performer.layers.PerformerBlock,
            keras_performer.RedrawFeatures,
            keras_performer.feature_maps.GeneralizedFeatures,
            keras_performer.feature_maps.SoftmaxFeatures,
        )
    }
    assert names == {
        "keras_performer>PerformerAttention",
        "keras_performer>PerformerLM",
        "keras_performer>ExactAttention",
        "keras_performer>PerformerBlock",
        "keras_performer>RedrawFeatures",
        "keras_performer>GeneralizedFeatures",
        "keras_performer>SoftmaxFeatures",
    }
