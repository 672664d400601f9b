"""One v5e chip of 16 GB can train on sequences of the promised length."""

import pytest

from benchmarks.tpu import lengths

# About two minutes each, but for what is refused.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("recompute", "log2_length"), [("block", 20), ("network", 24)])
def test_recomputing_fits(recompute, log2_length):
    row = lengths.compile_length(recompute, log2_length, "v5e-1")
    assert row["fits"], row
    # The ids and the targets alone, of four bytes each.
    assert row["memory"]["arguments"] > 8 * 2**log2_length


@pytest.mark.parametrize(("recompute", "log2_length"), [("exact", 14), ("none", 17)])
def test_not_recomputing_does_not(recompute, log2_length):
    row = lengths.compile_length(recompute, log2_length, "v5e-1")
    assert not row["fits"]
    assert row["gib"] > row["available_gib"]
