"""Far keys to both sides, token after token.

A stabilizer follows every single key, so that no weight is lost however much one key
dwarfs the others. Slow, and seldom needed. Sums are not stored: a query takes those over
keys as they grow, and backward a key those over queries.
"""

import tensorflow as tf

from keras_performer.ops.arrays import new_array
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    per_feature,
    split,
    sum_of_products,
)
from keras_performer.ops.normalizer import normalize, with_ones
from keras_performer.ops.shapes import repeat, size, sizes
from keras_performer.ops.state import absorb, initial_state
from keras_performer.ops.tapes import unrecorded
from keras_performer.ops.visibility import mask_or_all


class FarTokens:
    """The loops forward and backward.

    A loop takes the tokens in their order and against it, at once, as further examples:
    X is twice the batch size times key-value heads. The token that it adds to the sums
    stands at the window's distance before the one that then takes them.

    Args:
        kernel: a `Kernel` with a stabilizer.
        query, key, value: tensors.
        mask: bool tensor `(B, T)`, true for visible keys, or `None`.
        window: int, keys at this distance and beyond are far.
    """

    def __init__(self, kernel, query, key, value, mask, window):
        self.kernel, self.window = kernel, window
        self.heads = Heads(query, key, value)
        self.query, self.key, self.value = query, key, value
        self.mask = mask_or_all(mask, key)[:, :, tf.newaxis, tf.newaxis]

    def forward(self):
        """Outputs and log-sums of the far keys before a query, and of those after it.

        Returns:
            Two pairs of tensors `(B, T, N, V)` and `(B, T, N, 1)`.
        """
        kernel = self.kernel

        def answer(at, r, sums):
            x = at(self.query)
            p, peak = kernel.query_features(kernel.project_queries(x), r)
            found = over_features(p, sums)
            log = kernel.log_normalizer(kernel.normalizer(peak, found[..., -1:]))
            return [normalize(found), log + kernel.log_left_out(x)], []

        heads, dims = self.query.shape[2], (size(self.value, 3), 1)
        found, _ = self._loop(self._added_key, answer, [(heads, dim) for dim in dims])
        fills = 0.0, EMPTY
        return list(zip(*map(self._sides, found, fills)))

    def backward(self, log_sums, d):
        """Gradients of query, key, value, gain, and of what of the kernel trains.

        Args:
            log_sums: of all keys, less the gain, `(B, T, N, 1)`.
            d: gradient of the sums of queries, times their normalizers,
                `(B, T, N, V + 1)`.
        """
        kernel = self.kernel
        trained = kernel.trained

        def queries(at):
            x = at(self.query)
            log = at(log_sums) - kernel.log_left_out(x)
            return x, kernel.project_queries(x), kernel.normalizer_of(log), at(d)

        def to_query(at, r, sums):
            x, a, normalizer, d = queries(at)
            p = kernel.normalized_query_features(a, r, normalizer)
            dp = per_feature(d, sums)
            dx, dtrained = kernel.pull_queries(x, kernel.query_gradient(a, p, dp))
            left = sum_of_products(p, dp)
            return [dx + kernel.pull_left_out(x, left), left], dtrained

        def added_query(at):
            # features whose weights are shares of all
            _, a, normalizer, d = queries(at)
            return kernel.query_logs(a, (-normalizer,) * kernel.num_parts), d

        def to_key(at, r, sums):
            y, b, v, mask = self._keys(at)
            e = kernel.key_features(b, each(tf.negative, r), mask)
            db = kernel.key_gradient(b, e, per_feature(v, sums), mask)
            dv = over_features(e, sums)
            dy, dtrained = kernel.pull_keys(y, mask, db, v, dv)
            return [dy, dv[..., :-1]], dtrained

        heads, head_dim = self.query.shape[2:]
        shapes = [(heads, head_dim), (heads, 1)]
        dqueries, from_queries = self._loop(self._added_key, to_query, shapes, trained)
        shapes = [(x.shape[2], size(x, 3)) for x in (self.key, self.value)]
        dkeys, from_keys = self._loop(added_query, to_key, shapes, trained)
        found = [tf.add_n(self._sides(x)) for x in (*dqueries, *dkeys)]
        dquery, left, dkey, dvalue = found
        dtrained = each(tf.add, from_queries, from_keys)
        return (dquery, dkey, dvalue), tf.reduce_sum(left, (0, 1)), *dtrained

    def _loop(self, added, take, shapes, trained=None):
        """Goes over all tokens that have a far one.

        Args:
            added: function of what gives a token: its log-features and what they weigh.
            take: function of the same, the stabilizer and the sums: what to keep of the
                token, and gradients of what trains.
            shapes: what is kept, `(heads, dim)` of each.
            trained: what trains; `None` forward, where nothing has tapes.

        Returns:
            `(arrays, gradients)`.
        """
        count = tf.maximum(size(self.query, 1) - self.window, 0)
        batch, parts = size(self.query, 0), self.kernel.num_parts
        features = self.kernel.num_features(self.key.shape[3])
        shape = 2 * batch, self.heads.num_key_value_heads, features
        state = initial_state(*shape, size(self.value, 3), self.heads.dtype)
        r, sums = (split(x, parts) for x in self.heads.state_rows(state))
        arrays = [new_array(self.heads.dtype, count, (batch, 2, *x)) for x in shapes]

        def body(t, r, sums, arrays, gradients):
            logs, weighed = added(lambda x: self._at(x, t))
            r, sums = absorb(self.kernel, logs, weighed, r, sums, None)
            found, more = take(lambda x: self._at(x, t + self.window), r, sums)
            arrays = [
                array.write(t, tf.reshape(x, (-1, 2, *shape)))
                for array, x, shape in zip(arrays, found, shapes)
            ]
            return t + 1, r, sums, arrays, [x + y for x, y in zip(gradients, more)]

        nothing = [tf.zeros_like(x) for x in trained or ()]
        start = tf.constant(0), r, sums, arrays, nothing
        return tf.while_loop(
            lambda t, *_: t < count,
            unrecorded(body) if trained is None else body,
            start,
            parallel_iterations=1,
        )[3:]

    def _at(self, x, t):
        """The token t, and that from the end, `(X, rows, dim)`."""
        heads = self.heads.num_key_value_heads
        x = tf.gather(x, tf.stack([t, size(x, 1) - 1 - t]), axis=1)
        if x.dtype == tf.bool:
            return repeat(tf.reshape(x, (-1, 1, 1)), heads, 0)
        shape = -1, x.shape[2] // heads, size(x, 3)
        return tf.reshape(tf.cast(x, self.heads.dtype), shape)

    def _keys(self, at):
        """Keys, projected keys, values with their ones, and the mask."""
        y, v, mask = at(self.key), at(self.value), at(self.mask)
        return y, self.kernel.project_keys(y, mask), with_ones(v), mask

    def _added_key(self, at):
        _, b, v, _ = self._keys(at)
        return b, v

    def _sides(self, array, fill=0.0):
        """What is said of each token in the one order, and in the other."""
        earlier, later = tf.unstack(array.stack(), axis=2)
        shape = self.window, *sizes(earlier)[1:]
        first = tf.fill(shape, tf.constant(fill, earlier.dtype))
        sides = tf.concat([first, earlier], 0), tf.concat([later[::-1], first], 0)
        return [tf.transpose(x, (1, 0, 2, 3)) for x in sides]
