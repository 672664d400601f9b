"""Global tokens in `ops`: a `Visibility` with them, and the operations that take it."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops, zoo
from tests.ops.cases import qkv, softmax_kernel

GLOBAL = tf.constant([[False, False, True, False, False, False]])
VISIBLE = ops.Visibility(global_tokens=GLOBAL)


def test_a_window_does_not_bind_them():
    visible = VISIBLE._replace(
        key_mask=tf.constant([[True] * 5 + [False]]), sliding_window=1
    )
    expected = np.eye(6, dtype=bool) | (np.arange(6) == 2)
    expected[2] = True
    expected[:, 5] = False
    np.testing.assert_array_equal(visible.matrix(6, 6)[0], expected)
    causal = visible._replace(causal=True).matrix(6, 6)[0]
    np.testing.assert_array_equal(causal, np.tril(expected))
    np.testing.assert_array_equal(visible.rows([2, 4], 6)[0], expected[[2, 4]])


def test_other_attention_and_segments_refuse_them():
    heads, kernel = qkv(1, 6, 6, 1), softmax_kernel()
    packed = VISIBLE._replace(starts=GLOBAL)
    for message, call in (
        ("support global", lambda: ops.local_attention(*heads, 2, VISIBLE)),
        (
            "support global",
            lambda: ops.bidirectional_attention(*heads, kernel, VISIBLE),
        ),
        (
            "support global",
            lambda: ops.windowed_attention(*heads, kernel, 2, key_mask=VISIBLE),
        ),
        (
            "does not support packed sequences",
            lambda: zoo.global_token_attention(*heads, *heads, 2, 1, packed),
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
