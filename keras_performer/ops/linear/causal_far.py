"""Causal attention to some keys, whose weights stand beside those of other keys.

Forward it is by itself, with the logarithms of the sums of its weights. Backward it
takes the output and the log-sums of attention to all keys: its weights then are their
shares of all weights, and it keeps no output of its own.
"""

import tensorflow as tf

from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import split
from keras_performer.ops.linear.causal_loops import Causal
from keras_performer.ops.linear.causal_step import one_token
from keras_performer.ops.shapes import size


def forward(kernel, visible, chunk_size, query, key, value, r, sums):
    """Outputs, log-sums, the state after the last token, and that before each block.

    The log-sums lack `kernel.log_left_out`, and are `EMPTY` where no key is visible.
    """
    if query.shape[1] == 1:
        inputs = kernel, visible.key_mask, query, key, value, r, sums
        start = [part for x in (r, sums) for part in split(x, kernel.num_parts)]
        return *one_token(*inputs, True), [x[tf.newaxis] for x in start]
    loops = Causal(query, key, value, kernel, visible, chunk_size)
    output, *end, saved = loops.forward(query, key, value, r, sums)
    normalizers, *states = saved
    log_sums = loops.of_queries(kernel.log_normalizer(normalizers), query)
    return output, log_sums, *end, states


def backward(kernel, visible, chunk_size, query, key, value, *saved):
    """Gradients of query, key, value, the sums before, and what of the kernel trains.

    Args:
        kernel, visible, chunk_size, query, key, value: as in `forward`.
        *saved: the output of attention to all keys; its log-sums, without
            `kernel.log_left_out`; which queries see a key here, bool `(B, T, N, 1)`;
            the gradients of output and log-sums; the states before each block, and the
            stabilizer after the last; and the gradient of the sums after it.
    """
    output, log_sums, sees, doutput, dlog_sums, states, r_end, dsums = saved
    loops = Causal(query, key, value, kernel, visible, chunk_size)
    logs, sees = loops.blocks.cut(log_sums), loops.blocks.cut(sees)
    # of a query that sees no key here: no features, whatever all weights are
    logs = tf.where(sees, logs, tf.constant(EMPTY, logs.dtype))
    count, tokens = size(logs, 1), size(logs, 2)
    shape = -1, tokens, query.shape[2], 1
    rows = loops.heads.query_rows(
        tf.reshape(tf.transpose(logs, (1, 0, 2, 3, 4)), shape)[:, tf.newaxis], 0
    )
    rows = tf.reshape(rows, (count, -1, size(rows, 1), 1))
    kept = kernel.normalizer_of(rows), *states
    ends = output, kept, r_end, doutput, dsums, dlog_sums
    return loops.backward(query, key, value, *ends)
