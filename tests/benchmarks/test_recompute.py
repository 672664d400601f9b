"""What a training step that computes again spares, measured in new processes."""

import pytest

from benchmarks.recompute import in_new_process


@pytest.mark.slow
def test_what_is_computed_again_is_not_kept():
    length = 2**15
    plain, block, network = (
        in_new_process(recompute, length)[0] for recompute in (None, "block", "network")
    )
    # some 400 MB of each are TensorFlow's, whatever the length
    assert plain > 2e9
    assert block < 0.35 * plain
    assert network < 0.25 * plain
