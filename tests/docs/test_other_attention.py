"""The table of *Other attention* matches the attributes of the classes."""

import inspect
import re

from docs.pages import ROOT
from keras_performer import layers, zoo

ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def test_the_table_has_every_attention_and_mixer_as_it_is():
    page = (ROOT / "docs" / "other_attention.md").read_text()
    bases = layers.AttentionLayer, layers.MixingLayer
    exported = [*vars(layers).values(), *vars(zoo).values()]
    expected = {
        one.__name__: [one.cost, *map(words, abilities(one))]
        for one in exported
        if inspect.isclass(one) and issubclass(one, bases) and one not in bases
    }
    found = {name: cells.split(" | ") for name, cells in ROW.findall(page)}
    assert found == expected


def abilities(layer):
    return (
        layer.supports_causal,
        layer.supports_state,
        layer.supports_segments,
        "max_length" not in inspect.signature(layer).parameters,
        layer.supports_cross_attention,
    )


def words(can):
    return "yes" if can else "no"
