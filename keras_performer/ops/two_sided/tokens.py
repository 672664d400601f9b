"""Far keys to both sides, token after token.

A stabilizer follows every single key, so that no weight is lost however much one key
dwarfs the others. Slow, and seldom needed. Sums are not stored: a query takes those
over keys as they grow, and backward a key those over queries. What is found is added to
what other keys gave, token by token.
"""

import tensorflow as tf

from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import split_heads
from keras_performer.ops.kernels.parts import (
    each,
    over_features,
    per_feature,
    split,
    sum_of_products,
)
from keras_performer.ops.normalizer import (
    joined,
    normalize,
    with_normalizer_gradient,
    with_ones,
)
from keras_performer.ops.shapes import repeat, size, sizes
from keras_performer.ops.state import absorb, initial_state
from keras_performer.ops.tapes import unrecorded
from keras_performer.ops.visibility import mask_or_all


class FarTokens:
    """The loops forward and backward.

    A loop takes the tokens in their order, then against it. The token that it adds to
    the sums stands at the window's distance before the one that then takes them.

    Args:
        kernel: a `Kernel` with a stabilizer.
        query, key, value: tensors.
        mask: bool tensor `(B, T)`, true for visible keys, or `None`.
        gain: tensor `(N, 1)`, the logarithm of what multiplies far weights.
        window: int, keys at this distance and beyond are far.
    """

    def __init__(self, kernel, query, key, value, mask, gain, window):
        self.kernel, self.window = kernel, window
        self.heads = Heads(query, key, value)
        self.query, self.key, self.value = query, key, value
        self.mask = mask_or_all(mask, key)[:, :, tf.newaxis, tf.newaxis]
        self.gain = tf.reshape(gain, (-1, self.heads.group, 1))

    def forward(self, output, log_sums):
        """The output and the log-sums of all keys from those of near ones."""
        kernel = self.kernel

        def answer(at, r, sums, near):
            x = at(self.query)
            p, peak = kernel.query_features(kernel.project_queries(x), r)
            found = over_features(p, sums)
            log = kernel.log_normalizer(kernel.normalizer(peak, found[..., -1:]))
            log = self._with_gain(log + kernel.log_left_out(x))
            return joined([near, (normalize(found), log)]), []

        return self._loop(self._added_key, answer, (output, log_sums))[0]

    def backward(self, output, log_sums, doutput, near):
        """Gradients of query, key, value, gain, and of what of the kernel trains.

        Args:
            output, log_sums: what `forward` returned.
            doutput: gradient of the output.
            near: those of query, key and value that near keys gave.
        """
        kernel = self.kernel
        trained = kernel.trained

        def queries(at):
            x, d = at(self.query), with_normalizer_gradient(at(doutput), at(output))
            log = self._with_gain(at(log_sums) - kernel.log_left_out(x), -1)
            return x, kernel.project_queries(x), kernel.normalizer_of(log), d

        def to_query(at, r, sums, found):
            x, a, normalizer, d = queries(at)
            p = kernel.normalized_query_features(a, r, normalizer)
            dp = per_feature(d, sums)
            dx, more = kernel.pull_queries(x, kernel.query_gradient(a, p, dp))
            left = sum_of_products(p, dp)
            dx += kernel.pull_left_out(x, left)
            return [found[0] + dx], [self._of_gain(left), *more]

        def added_query(at):
            # features whose weights are shares of all
            _, a, normalizer, d = queries(at)
            return kernel.query_logs(a, (-normalizer,) * kernel.num_parts), d

        def to_key(at, r, sums, found):
            y, b, v, mask = self._keys(at)
            e = kernel.key_features(b, each(tf.negative, r), mask)
            db = kernel.key_gradient(b, e, per_feature(v, sums), mask)
            dv = over_features(e, sums)
            dy, more = kernel.pull_keys(y, mask, db, v, dv)
            return [found[0] + dy, found[1] + dv[..., :-1]], more

        start = [tf.zeros_like(x) for x in (self.gain, *trained)]
        dquery, (dgain, *from_queries) = self._loop(
            self._added_key, to_query, near[:1], start
        )
        dkeys, from_keys = self._loop(added_query, to_key, near[1:], start[1:])
        dgain = tf.reshape(dgain, (-1, 1))
        return *dquery, *dkeys, dgain, *each(tf.add, from_queries, from_keys)

    def _loop(self, added, take, found, gradients=None):
        """Goes over all tokens that have a far one.

        Args:
            added: function of what gives a token: its log-features and what they weigh.
            take: function of the same, the stabilizer, the sums and what is found of
                the token: that with what the sums say, and gradients of what trains.
            found: tensors `(B, T, heads, dim)`.
            gradients: tensors to add to; `None` forward, where nothing has tapes.

        Returns:
            `(found, gradients)`.
        """
        length, batch = size(self.query, 1), size(self.query, 0)
        count = tf.maximum(length - self.window, 0)
        features = self.kernel.num_features(self.key.shape[3])
        shape = batch, self.heads.num_key_value_heads, features
        start = initial_state(*shape, size(self.value, 3), self.heads.dtype)
        start = self.heads.state_rows(start)
        start = [split(x, self.kernel.num_parts) for x in start]

        def body(step, r, sums, arrays, gradients):
            turned = step >= count
            r, sums = (
                each(lambda x, y: tf.where(step == count, x, y), *z)
                for z in zip(start, (r, sums))
            )
            place = tf.where(turned, length - 1 - step + count, step)
            logs, weighed = added(lambda x: self._at(x, place))
            r, sums = absorb(self.kernel, logs, weighed, r, sums, None)
            place += tf.where(turned, -self.window, self.window)
            old = [self._rows(array.read(place)) for array in arrays]
            new, more = take(lambda x: self._at(x, place), r, sums, old)
            arrays = [
                array.write(place, tf.reshape(x, (batch, *sizes(z)[2:])))
                for array, x, z in zip(arrays, new, found)
            ]
            return step + 1, r, sums, arrays, each(tf.add, gradients, more)

        arrays = [
            tf.TensorArray(self.heads.dtype, length).unstack(
                tf.transpose(tf.cast(x, self.heads.dtype), (1, 0, 2, 3))
            )
            for x in found
        ]
        *_, arrays, gradients_ = tf.while_loop(
            lambda step, *_: step < 2 * count,
            unrecorded(body) if gradients is None else body,
            (tf.constant(0), *start, arrays, tuple(gradients or ())),
            parallel_iterations=1,
        )
        whole = [
            tf.ensure_shape(tf.transpose(array.stack(), (1, 0, 2, 3)), x.shape)
            for array, x in zip(arrays, found)
        ]
        return tuple(whole), gradients_

    def _at(self, x, place):
        """A token as `(X, rows, dim)`."""
        return self._rows(tf.gather(x, place, axis=1))

    def _rows(self, x):
        heads = self.heads.num_key_value_heads
        if x.dtype == tf.bool:
            return repeat(x, heads, 0)
        shape = size(x, 0) * heads, x.shape[1] // heads, size(x, 2)
        return tf.reshape(tf.cast(x, self.heads.dtype), shape)

    def _keys(self, at):
        """Keys, projected keys, values with their ones, and the mask."""
        y, v, mask = at(self.key), at(self.value), at(self.mask)
        return y, self.kernel.project_keys(y, mask), with_ones(v), mask

    def _added_key(self, at):
        _, b, v, _ = self._keys(at)
        return b, v

    def _with_gain(self, log, sign=1):
        by_head = split_heads(log, self.heads.num_key_value_heads)
        return tf.reshape(by_head + sign * self.gain, tf.shape(log))

    def _of_gain(self, left):
        return tf.reduce_sum(split_heads(left, self.heads.num_key_value_heads), 0)
