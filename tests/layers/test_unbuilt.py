"""Methods of layers that are not built say so."""

import inspect

import keras
import pytest

from tests.cases import CASES

OF_KERAS = set(dir(keras.Model))


def public_names(layer_class):
    return [x for x in dir(layer_class) if x[0] != "_" and x not in OF_KERAS]


# One of each class.
NAMES = {case.layer_class: name for name, case in CASES.items()}.values()


@pytest.mark.parametrize("name", NAMES)
def test_public_methods_without_arguments_work_or_say_build_first(name):
    """`get_initial_state` takes a batch size; all else that has no other arguments."""
    for method in public_names(CASES[name].layer_class):
        layer = CASES[name].make()
        try:
            found = getattr(layer, method)
            if not inspect.ismethod(found):
                continue
            required = [
                one.name
                for one in inspect.signature(found).parameters.values()
                if one.default is one.empty and one.kind is not one.VAR_KEYWORD
            ]
            if required == ["batch_size"]:
                found(3)
            elif not required:
                found()
        except (AttributeError, ValueError) as error:
            message = str(error)
            assert any(
                words in message
                for words in (
                    *("call it on data", "call the layer first", "has no state"),
                    "attends to its own sequence alone",
                )
            ), (method, message)


def test_a_state_before_build_says_what_to_do():
    layer = CASES["block_conv_causal"].make()
    with pytest.raises(AttributeError, match=r"must be built first: call it on data"):
        layer.get_initial_state(3)
    layer.build((None, None, 7))
    assert layer.get_initial_state(3)["convolution"]["inputs"].shape == (3, 2, 7)


def test_a_built_layer_has_no_other_attributes():
    layer = CASES["attention"].make()
    layer.build((None, None, 7))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = layer.nothing
    assert not hasattr(CASES["attention"].make(), "query_dense")
