"""Tables, signatures and errors on the pages are those of the code."""

import inspect
import re

import pytest

import keras_performer
from docs import check_links, signatures
from docs.pages import ROOT
from keras_performer import feature_maps, layers, ops, zoo
from tests.test_wrong_uses import ALL

# -- *Compatibility*: signatures of Keras and of our layers.

PAGE = signatures.PAGE.read_text()


def test_the_record_is_of_the_keras_that_runs():
    record = signatures.recorded()
    # a Keras newer than the record must have the newest recorded signatures
    newest = list(record.values())[-1]
    assert signatures.of_keras() == record.get(signatures.version(), newest)
    assert "3.10" in record  # the oldest version in setup.cfg


def test_the_tables_are_written_from_the_signatures():
    assert signatures.page(PAGE, signatures.recorded()) == PAGE
    for name in signatures.RECORDED:
        assert "missing" not in signatures.table(name, signatures.recorded())


@pytest.mark.parametrize("version", signatures.recorded())
def test_positions_are_those_of_every_keras(version):
    of_keras = signatures.recorded()[version]
    ours = keras_performer.PerformerAttention
    for name, first in ("__init__", 6), ("call", 10), ("build", 3):
        theirs = [argument for argument, _ in of_keras[f"MultiHeadAttention.{name}"]]
        function = ours if name == "__init__" else getattr(ours, name)
        assert signatures.with_places(function)[:first] == theirs[:first]


# -- The reference.

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


# -- *Other attention*: attributes of classes.


def test_the_table_has_every_attention_and_mixer_as_it_is():
    page = (ROOT / "docs" / "other_attention.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    bases = layers.AttentionLayer, layers.MixingLayer
    exported = [*vars(layers).values(), *vars(zoo).values()]
    expected = {
        one.__name__: [one.cost, *("yes" if x else "no" for x in abilities(one))]
        for one in exported
        if inspect.isclass(one) and issubclass(one, bases) and one not in bases
    }
    assert {name: cells.split(" | ") for name, cells in rows} == expected


def abilities(layer):
    return (
        layer.supports_causal,
        layer.supports_state,
        layer.supports_segments,
        "max_length" not in inspect.signature(layer).parameters,
        layer.supports_cross_attention,
    )


# -- *Troubleshooting*.


def test_each_error_of_the_page_is_raised_by_a_test():
    page = (ROOT / "docs" / "errors.md").read_text()
    headings = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(headings) == len(set(headings)) == 15
    messages = {wrong.wanted for wrong in ALL}
    of_keras = ["Could not locate class 'PerformerAttention'"]
    assert [text for text in headings if text not in messages] == of_keras
