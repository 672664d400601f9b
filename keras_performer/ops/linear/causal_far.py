"""Causal attention to the keys of some places before a query, and after it.

The loops read a sequence where it lies. What they find they add block by block to what
other keys gave: outputs and log-sums forward, gradients backward. Backward the weights
are shares of all weights, from the output and the log-sums of attention to all keys.

Keys stand `delay` places further than where they lie, so that query i sees those up to
its own place. Those after a query are those before it in the reversed sequence: where
they count, too, a block holds its tokens of both orders, as further examples.
"""

import tensorflow as tf

from keras_performer.ops.blocks import Blocks
from keras_performer.ops.heads import block_of
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.kernels.parts import split
from keras_performer.ops.linear.causal_loops import Causal
from keras_performer.ops.linear.causal_step import one_token
from keras_performer.ops.normalizer import joined
from keras_performer.ops.segments import reversed_starts, segment_numbers
from keras_performer.ops.shapes import pad, repeat, size
from keras_performer.ops.visibility import Visibility, mask_or_all


class Far(Causal):
    """The loops of far keys.

    Args:
        kernel, query, key, value, chunk_size: as in `Causal`.
        gain: tensor `(N, 1)`, the logarithm of what multiplies their weights.
        mask: bool tensor `(B, T)`, true for visible keys, or `None`.
        starts: as in `Visibility`, or `None`.
        delay: int, how many places keys stand further.
        distance: int, how far the nearest of these keys is from a query.
        both: bool, whether there are keys after a query.
    """

    def __init__(
        self,
        kernel,
        query,
        key,
        value,
        chunk_size,
        gain,
        mask,
        starts,
        delay,
        distance,
        both,
    ):
        self.sides = 2 if both else 1
        nothing = Visibility(causal=True)
        super().__init__(query, key, value, kernel, nothing, chunk_size, self.sides)
        self.gain = gain
        # of all tokens; the first blocks see no key
        self.whole = whole = self.blocks
        tokens = whole.tokens
        self.skipped = _least(delay // tokens, whole.count - 1)
        self.shift = _least(delay - self.skipped * tokens, tokens)
        first, length = self.skipped * tokens, whole.count * tokens
        self.blocks = Blocks(length - first, tokens, tokens)

        self.mask = mask
        if delay or whole.padded:
            mask = mask_or_all(mask, query)
        if mask is not None:
            # no key that only queries after the last would see
            orders = [self._whole(self._delayed(mask, delay))]
            if both:
                later = tf.reverse(self._whole(mask), [1])
                orders.append(self._delayed(later, delay))
            mask = tf.concat(orders, 0)[:, first:]
        self.own = None
        if starts is not None:
            starts = self._orders(self._whole(starts), reversed_starts)
            numbers = segment_numbers(starts)
            starts = self._delayed(starts, distance)
            # the last key is of the query's segment
            own = numbers == segment_numbers(starts)
            self.own = self.blocks.cut(own[:, first:])
            starts = starts[:, first:]
        visible = Visibility(mask, causal=True, starts=starts)
        examples = self.sides * size(query, 0)
        self.visible = visible.in_blocks(self.blocks, self.heads, examples)

    def forward(self, query, key, value, r, sums, output, log_sums, shapes):
        """Adds far keys to the output and the log-sums of others.

        Args:
            query, key, value: tensors.
            r, sums: the state before the first query.
            output, log_sums: arrays of the blocks of all tokens, `whole`.
            shapes: the static shapes of the two.

        Returns:
            `(output, log_sums, far, r, sums, saved)`: those of all keys; the log-sums
            of far keys alone; the state after the last token, of each order; and what
            `backward` needs.
        """
        heads, whole = self.heads, self.whole
        if query.shape[1] == 1:
            others = [whole.join(x, y) for x, y in zip((output, log_sums), shapes)]
            return self._one_token(query, key, value, r, sums, *others)

        def write(i, outputs, logs, far, sees, x, block, normalizer):
            log = self.kernel.log_normalizer(normalizer)
            if self.own is not None:
                own = repeat(heads.mask_rows(self.own, i), heads.group, 1)
                block, log = self._of_segment(own, block, log)
            sees = sees.write(i, log > EMPTY)
            log = heads.query_block(log + self.kernel.log_left_out(x)) + self.gain
            block = heads.query_block(block)
            places = self._places(i + self.skipped)
            for place, *own in zip(places, self._split(block), self._split(log)):
                others = outputs.read(place), logs.read(place)
                block, log = joined([others, own])
                outputs, logs = outputs.write(place, block), logs.write(place, log)
                both = tf.concat([far.read(place), own[1]], -1)
                far = far.write(place, tf.reduce_logsumexp(both, -1, keepdims=True))
            return outputs, logs, far, sees

        nothing = whole.filled(query, 1, heads.dtype, EMPTY)
        rows, *rest = heads.query_rows_shape(query, whole.tokens, 1)
        sees = self.blocks.array(tf.bool, (self.sides * rows, *rest))
        found = [output, log_sums, nothing, sees]
        inputs = self._queries(query), self._keys(key), self._keys(value)
        r, sums = (tf.concat([x] * self.sides, 0) for x in (r, sums))
        found, *end, states = self.forward_loop(inputs, r, sums, found, write)
        *found, sees = found
        output, log_sums, far = map(whole.join, found, (*shapes, shapes[1]))
        return output, log_sums, far, *end, (sees.stack(), end[0], states)

    def backward(
        self,
        query,
        key,
        value,
        output,
        log_sums,
        saved,
        doutput,
        dlog_sums,
        dsums,
        dfar,
        gradients,
    ):
        """Adds the gradients of query, key and value to those of others.

        Args:
            output, log_sums: of attention to all keys.
            saved: what `forward` returned last.
            doutput, dlog_sums, dsums: their gradients, and that of the sums.
            dfar: those of the logarithms of far keys' sums, `(B, T, N, 1)`.
            gradients: arrays of the blocks of all tokens, of query, key and value.

        Returns:
            `(gradients, dsums, dtrained)`: the sums; the gradient of the sums before;
            and a list of those of what of the kernel trains.
        """
        heads, whole = self.heads, self.whole
        sees, r_end, states = saved
        logs = whole.cut(log_sums - self.gain)
        queries = whole.cut_mask(None, size(query, 0))
        if queries is not None:
            queries = queries[..., tf.newaxis, tf.newaxis]
            logs = tf.where(queries, logs, tf.constant(EMPTY, logs.dtype))

        def normalizer(i, x):
            log = heads.query_rows(self._in_orders(logs), i)
            log -= self.kernel.log_left_out(x)
            # of a query that sees no key here: no features, whatever all weights are
            log = tf.where(sees[i], log, tf.constant(EMPTY, log.dtype))
            return self.kernel.normalizer_of(log)

        def write(i, dqueries, dkeys, dvalues, later_keys, later_values, dx, dy, dv):
            dkeys, later_keys = self._add_keys(dkeys, i, dy, later_keys)
            dvalues, later_values = self._add_keys(dvalues, i, dv, later_values)
            x = tf.cast(inputs[0](i), heads.dtype)
            left_out = self.kernel.pull_left_out(x, dlefts(i))
            dqueries = self._add(dqueries, i + self.skipped, dx + left_out)
            return dqueries, dkeys, dvalues, later_keys, later_values

        inputs = self._queries(query), self._keys(key), self._keys(value)
        rows = map(self._queries, (output, doutput, dlog_sums))
        shape = self.sides * size(query, 0), self.shift, key.shape[2]
        later = [tf.zeros((*shape, size(x, 3)), heads.dtype) for x in (key, value)]
        dlefts = self._once(dfar)
        found = *gradients, *later
        (*arrays, _, _), dsums, dtrained = self.backward_loop(
            inputs, rows, normalizer, states, r_end, dsums, found, write
        )
        gradients = whole.join_in_turn(arrays, (query, key, value))
        return gradients, tf.add_n(tf.split(dsums, self.sides)), dtrained

    def _one_token(self, query, key, value, r, sums, output, log_sums):
        """`forward` without blocks: what a token costs is operations."""
        parts = self.kernel.num_parts
        inputs = self.kernel, self.mask, query, key, value, r, sums
        found, log, *end = one_token(*inputs, True)
        if self.own is not None:
            found, log = self._of_segment(self.own[..., tf.newaxis], found, log)
        seen = self.heads.query_rows(log[:, tf.newaxis], 0) > EMPTY
        x = tf.cast(query, log.dtype)
        log += self.kernel.log_left_out(x) + self.gain
        states = [x[tf.newaxis] for z in (r, sums) for x in split(z, parts)]
        output, log_sums = joined([(output, log_sums), (found, log)])
        return output, log_sums, log, *end, (seen[tf.newaxis], end[0], states)

    def _of_segment(self, own, output, log_sums):
        """Nothing where the last far key is of another segment than the query."""
        output = tf.where(own, output, tf.zeros_like(output))
        return output, tf.where(own, log_sums, tf.constant(EMPTY, log_sums.dtype))

    def _whole(self, x):
        """`(B, T)` padded to whole blocks."""
        length = self.whole.count * self.whole.tokens
        return tf.reshape(self.whole.cut(x), (-1, length))

    def _orders(self, x, reverse=lambda x: tf.reverse(x, [1])):
        """`(B, tokens, ...)` in the orders of the sides, as further examples."""
        return x if self.sides == 1 else tf.concat([x, reverse(x)], 0)

    def _split(self, x):
        """The inverse of `_orders`: a list."""
        if self.sides == 1:
            return [x]
        earlier, later = tf.split(x, 2)
        return [earlier, tf.reverse(later, [1])]

    def _places(self, i):
        """Where block i of each order lies."""
        return (i, self.whole.count - 1 - i)[: self.sides]

    def _delayed(self, x, delay):
        return pad(x, [[0, 0], [delay, 0]])[:, : size(x, 1)]

    def _block_of(self, blocks, i):
        """Block i of each order, of blocks that lie in that of the sequence."""
        parts = [block_of(blocks, place) for place in self._places(i)]
        if self.sides == 1:
            return parts[0]
        return tf.concat([parts[0], tf.reverse(parts[1], [1])], 0)

    def _in_orders(self, blocks):
        """What gives block i of queries."""
        return lambda i: self._block_of(blocks, i + self.skipped)

    def _queries(self, x):
        return self._in_orders(self.whole.cut(x))

    def _keys(self, x):
        """Blocks of keys that are delayed: each has some of the block before."""
        blocks, own = self.whole.cut(x), self.whole.tokens - self.shift

        def block(i):
            before = self._block_of(blocks, tf.maximum(i - 1, 0))[:, own:]
            return tf.concat([before, self._block_of(blocks, i)[:, :own]], 1)

        return block

    def _once(self, x):
        """What gives block i of queries where no other order gives it, zeros there."""
        blocks = self._queries(x)
        if self.sides == 1:
            return blocks

        def block(i):
            first, later = tf.split(blocks(i), 2)
            # the first order begins after blocks that the other one comes to
            skipped = self._places(i + self.skipped)[1] < self.skipped
            return tf.concat([first, tf.where(skipped, later, tf.zeros_like(later))], 0)

        return block

    def _add(self, array, i, x):
        for place, part in zip(self._places(i), self._split(x)):
            array = array.write(place, array.read(place) + part)
        return array

    def _add_keys(self, array, i, x, later):
        """Adds to keys that are delayed: a block's last are the next one's first.

        Args:
            later: what the block after it said of its first keys.

        Returns:
            `(array, later)`, for the block before.
        """
        array = self._add(array, i, tf.concat([x[:, self.shift :], later], 1))
        return array, tf.ensure_shape(x[:, : self.shift], later.shape)


def _least(a, b):
    ints = isinstance(a, int) and isinstance(b, int)
    return min(a, b) if ints else tf.minimum(a, b)
