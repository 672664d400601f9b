"""The reference pages have the signatures that Python shows."""

import inspect

import pytest

import keras_performer
from docs import check_links
from keras_performer import feature_maps, layers, ops, zoo

PARTS = keras_performer, layers, zoo, feature_maps, ops
CLASSES = check_links.defined_classes(check_links.PACKAGE)
NAMES = {name for _, name in check_links.public_names(check_links.PACKAGE)}
NAMED = sorted(
    name
    for name in NAMES & set(CLASSES)
    if check_links.inherited(CLASSES, name, "__init__")
)


@pytest.mark.parametrize("name", NAMED)
def test_constructors_on_the_pages_are_those_that_python_shows(name):
    arguments = check_links.inherited(CLASSES, name, "__init__").args
    on_page = [(argument.arg, False) for argument in arguments.args[1:]]
    on_page += [(argument.arg, True) for argument in arguments.kwonlyargs]
    cls = next(getattr(part, name) for part in PARTS if hasattr(part, name))
    shown = [
        (parameter.name, parameter.kind is parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    if hasattr(cls, "decided"):  # Python also shows options of PerformerAttention
        assert arguments.kwarg is not None
        shown = shown[: len(on_page)]
    assert on_page == shown
