"""Local attention beside huge keys; layers/test_definitions.py tests its numbers."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from tests.ops.cases import qkv


@pytest.mark.parametrize("size, causal", [(1e30, True), (1e6, False), (-1e35, False)])
def test_far_keys_move_nothing_however_large(size, causal):
    query, key, value = qkv(1, 200, 200, 1, dtype="float32")
    visible = ops.Visibility(causal=causal)
    first = tf.range(200)[:, None, None] < 100
    larger = tf.where(first, key, size), tf.where(first, value, 1e6)
    unmoved = 100 if causal else 91
    before, after = (
        ops.local_attention(query, *given, 10, visible)[0]
        for given in ((key, value), larger)
    )
    np.testing.assert_array_equal(before[:, :unmoved], after[:, :unmoved])


def test_features_have_no_window():
    given = *qkv(1, 6, 6, 1), ops.TaylorKernel(), ops.Visibility(sliding_window=3)
    state = ops.initial_state(1, 1, 21, 7, tf.float64)
    for call in (
        lambda: ops.causal_attention(*given),
        lambda: ops.bidirectional_attention(*given),
        lambda: ops.absorb_keys(*given[1:], state),
    ):
        with pytest.raises(ValueError, match="sees keys at any distance"):
            call()
