"""The loops over rounds of hashing, forward and backward."""

import tensorflow as tf

from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.heads import block_of
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.local.loops import Local
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.lsh.buckets import near
from keras_performer.ops.normalizer import joined
from keras_performer.ops.shapes import compute_dtype, size


def attend_in_rounds(query, key, value, tokens, window, causal):
    """Attention to near tokens of one's buckets, each once, in all rounds together.

    Its gradient keeps what goes in and comes out, and computes weights again.

    Args:
        query, key: tensors of shape `(X, T, 1, H)`.
        value: tensor of shape `(X, T, 1, V)`.
        tokens: what `places` returned for the window.
        window: int, not above a length that is known.
        causal: bool.

    Returns:
        `(output, log_sums)`, float32 or for such inputs float64: `(X, T, 1, V)`, and
        the logarithms of the sums of weights, `(X, T, 1, 1)`, EMPTY for no keys.
    """
    seen, codes, order = tokens
    options = window - 1, 0, window, causal, None
    place, rounds = tf.argsort(order), order.shape[1]

    def sort(index, *tensors):
        indices = tf.gather(order, index, axis=1)
        return [tf.gather(x, indices, batch_dims=1) for x in tensors]

    def unsort(index, blocks, arrays, like):
        indices = tf.gather(place, index, axis=1)
        whole = [blocks.join(array, x.shape) for array, x in zip(arrays, like)]
        return [tf.gather(x, indices, batch_dims=1) for x in whole]

    def sorted_loops(index, *inputs):
        x, *keys, own_codes = sort(index, *inputs, seen, codes)
        keys = Recent(*keys)
        return Bucketed(options, x, keys, own_codes, index), x, keys

    def in_rounds(body, state):
        return tf.while_loop(
            lambda index, *_: index < rounds,
            lambda index, *state: (index + 1, *body(index, *state)),
            (tf.constant(0), *state),
            parallel_iterations=1,
        )[1:]

    @custom_gradient
    def attention(*inputs):
        dtype = compute_dtype(*inputs)

        def forward(index, *ends):
            loops, x, keys = sorted_loops(index, *inputs)
            found = unsort(index, loops.blocks, loops.forward(x, keys), ends)
            return joined([ends, found])

        nothing = tf.zeros_like(value, dtype)
        no_keys = tf.zeros_like(value[..., :1], dtype) + tf.constant(EMPTY, dtype)
        ends = in_rounds(forward, (nothing, no_keys))

        def gradient(doutput, _):
            def backward(index, *totals):
                loops, x, keys = sorted_loops(index, *inputs)
                arrays = loops.backward(x, keys, *sort(index, *ends, doutput), None)
                # the last are sums over rows, which nothing asks for
                gradients = unsort(index, loops.blocks, arrays, [*inputs, ends[1]])
                return [total + dx for total, dx in zip(totals, gradients)]

            totals = in_rounds(backward, [tf.zeros_like(x, dtype) for x in inputs])
            return [tf.cast(total, x.dtype) for total, x in zip(totals, inputs)]

        return ends, gradient

    return attention(query, key, value)


class Bucketed(Local):
    """The loops of `Local` on tokens sorted by bucket, in one round.

    Args:
        options, query, keys: as in `Local`, of sorted tokens.
        codes: int tensor `(X, T, rounds)`, as `places` returns them, sorted too.
        index: scalar int32 tensor, which round. Pairs of an earlier round are left out.
    """

    def __init__(self, options, query, keys, codes, index):
        super().__init__(options, query, keys)
        self.index = index
        self.query_codes = self.blocks.cut(codes)
        self.key_codes = tf.pad(codes, [*self._ends(size(codes, 1)), [0, 0]])

    def visible_pairs(self, i):
        queries = self._to_chunks(block_of(self.query_codes, i))
        keys = self._spans(self._part(self.key_codes, i))

        def near_in(index):
            query, key = (tf.gather(x, index, axis=3) for x in (queries, keys))
            pair = query[..., tf.newaxis], key[..., tf.newaxis, :]
            return near(*pair, self.window, self.causal)

        here = near_in(self.index)
        _, before = tf.while_loop(
            lambda index, _: index < self.index,
            lambda index, before: (index + 1, tf.logical_or(before, near_in(index))),
            (tf.constant(0), tf.zeros_like(here)),
            parallel_iterations=1,
        )
        return tf.logical_and(here, tf.logical_not(before))
