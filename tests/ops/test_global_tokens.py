"""Global tokens in `ops`: a `Visibility` that has them, and who takes it."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops, zoo
from tests.ops.cases import qkv, softmax_kernel

GLOBAL = tf.constant([[False, False, True, False, False, False]])


def test_a_window_does_not_bind_them():
    visible = ops.Visibility(
        tf.constant([[True] * 5 + [False]]), sliding_window=1, global_tokens=GLOBAL
    )
    expected = np.eye(6, dtype=bool) | (np.arange(6) == 2)
    expected[2] = True
    expected[:, 5] = False
    np.testing.assert_array_equal(visible.matrix(6, 6)[0], expected)
    causal = visible._replace(causal=True).matrix(6, 6)[0]
    np.testing.assert_array_equal(causal, np.tril(expected))
    np.testing.assert_array_equal(visible.rows([2, 4], 6)[0], expected[[2, 4]])


def test_it_is_exact_attention_where_both_kinds_of_heads_are_one():
    heads = qkv(1, 6, 6, 2, groups=2)
    visible = ops.Visibility(global_tokens=GLOBAL)
    near = visible._replace(sliding_window=2)
    got = zoo.global_token_attention(*heads, *heads, 2, 1, visible)
    right = ops.exact_attention(*heads, near)
    np.testing.assert_allclose(got, right, rtol=1e-12, atol=1e-12)


def test_other_attention_refuses_them():
    query, key, value = qkv(1, 6, 6, 1)
    visible, kernel = ops.Visibility(global_tokens=GLOBAL), softmax_kernel()
    for call in (
        lambda: ops.local_attention(query, key, value, 2, visible),
        lambda: ops.bidirectional_attention(query, key, value, kernel, visible),
        lambda: ops.windowed_attention(query, key, value, kernel, 2, key_mask=visible),
    ):
        with pytest.raises(ValueError, match="heed global tokens"):
            call()


def test_segments_are_refused():
    heads = qkv(1, 6, 6, 1)
    visible = ops.Visibility(starts=GLOBAL, global_tokens=GLOBAL)
    with pytest.raises(ValueError, match="those of one segment"):
        zoo.global_token_attention(*heads, *heads, 2, 1, visible)
