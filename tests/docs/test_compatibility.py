"""The tables of *Compatibility* are the signatures of Keras and of ours."""

import ast
import re

import pytest

from docs import signatures
from docs.pages import ROOT

PAGE = signatures.PAGE.read_text()
SHOWN_BY = re.compile(r"`(tests/[\w/]+\.py)::(\w+)` \|$", re.MULTILINE)


def test_the_record_is_of_the_keras_that_runs():
    record = signatures.recorded()
    # a newer Keras than those of the record may only have what the newest has
    newest = list(record.values())[-1]
    assert signatures.of_keras() == record.get(signatures.version(), newest)
    assert "3.10" in record  # the oldest of setup.cfg


def test_the_tables_are_written_from_the_signatures():
    assert signatures.page(PAGE, signatures.recorded()) == PAGE


def test_a_missing_or_moved_argument_is_noticed():
    record = signatures.recorded()
    changed = {**record, "3.99": {**list(record.values())[-1]}}
    name = "MultiHeadAttention.__init__"
    first, second, *others = changed["3.99"][name]
    changed["3.99"][name] = [second, first, *others, ["new", "None"]]
    table = signatures.table(name, changed)
    assert re.search(r"\| `new` \| `None` \| none \|.*\| none \| missing \|", table)
    assert re.search(r"\| `num_heads` \| none \| 1 \|.*\| 2 \| 1 \| the same \|", table)


def test_nothing_of_keras_is_missing():
    assert "| missing |" not in PAGE


def functions(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "name"), SHOWN_BY.findall(PAGE))
def test_what_shows_it_is_a_test(path, name):
    assert name in functions(path)


def test_each_point_is_shown_by_a_test():
    table = PAGE[PAGE.index("| asked for |") :].strip().splitlines()[2:]
    unshown = [row for row in table if not SHOWN_BY.search(row)]
    assert [row.split(" | ")[1] for row in unshown] == ["nor here"]
