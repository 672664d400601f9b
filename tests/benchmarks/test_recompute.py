"""What a training step that computes again spares, measured in new processes."""

import pytest

from benchmarks import alone
from benchmarks.recompute import step_of_blocks, training_step


@pytest.mark.slow
def test_what_is_computed_again_is_not_kept():
    plain, block, network = (
        alone.call(training_step, recompute, 2**14, 2)[0]
        for recompute in (None, "block", "network")
    )
    # 200 MB and more of each are TensorFlow's, whatever the length
    assert plain > 0.8e9
    assert block < 0.5 * plain
    assert network < 0.45 * plain


@pytest.mark.slow
def test_reversible_blocks_need_no_more_memory_where_there_are_more():
    def taken(reversible, depth):
        case = step_of_blocks, reversible, False, depth
        return alone.call(*case, initializer=alone.give_back)[0]

    assert taken(False, 6) > 2 * taken(False, 2)
    assert taken(True, 6) < 1.2 * taken(True, 2)
