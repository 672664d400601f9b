"""The tables of *Compatibility* match the signatures of Keras and of our layers."""

import pytest

import keras_performer
from docs import signatures

PAGE = signatures.PAGE.read_text()


def test_the_record_is_of_the_keras_that_runs():
    record = signatures.recorded()
    # a Keras newer than the record must have the newest recorded signatures
    newest = list(record.values())[-1]
    assert signatures.of_keras() == record.get(signatures.version(), newest)
    assert "3.10" in record  # the oldest version in setup.cfg


def test_the_tables_are_written_from_the_signatures():
    assert signatures.page(PAGE, signatures.recorded()) == PAGE


@pytest.mark.parametrize("name", signatures.RECORDED)
def test_nothing_of_keras_is_missing(name):
    assert "missing" not in signatures.table(name, signatures.recorded())


@pytest.mark.parametrize("version", signatures.recorded())
def test_positions_are_those_of_every_keras(version):
    of_keras = signatures.recorded()[version]
    ours = keras_performer.PerformerAttention
    for name, first in ("__init__", 6), ("call", 10), ("build", 3):
        theirs = [argument for argument, _ in of_keras[f"MultiHeadAttention.{name}"]]
        function = ours if name == "__init__" else getattr(ours, name)
        assert signatures.with_places(function)[:first] == theirs[:first]
