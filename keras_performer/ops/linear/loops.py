"""The two loops of causal attention over blocks of chunks, forward and backward.

    output_i = sum_j weight_ij v_j / sum_j weight_ij

    weight_ij = exp(x_i . y_j)                              nearest <= i - j < delay
                exp(log_gain) phi(x_i) . phi(y_j)                      delay <= i - j

    with gates times exp(g_(j+1) + ... + g_i)

The forward loop carries the state of far keys. The backward loop recomputes each block
from the state before it, so memory is linear in the length.

A block reads its own keys and the `halo` of keys before them. Keys of a state are the
last `delay` keys of the first halo. Far keys are shifted by `delay` tokens: a query
sees far keys of its own chunk through a triangular mask, and earlier ones in the sums.
Gates of far keys are shifted, too. Gates of the `delay` tokens in between multiply all
far weights of a query alike; the sum of their logarithms is its `fade`.
"""

import tensorflow as tf

from keras_performer.ops.blocks import (
    Blocks,
    Halo,
    block_sizes,
    shaped,
    tokens_per_block,
)
from keras_performer.ops.heads import Heads
from keras_performer.ops.kernels.base import EMPTY
from keras_performer.ops.linear import chunkwise
from keras_performer.ops.linear.pairs import (
    log_halves,
    pairs_of,
    pairs_of_segments,
    triangle,
)
from keras_performer.ops.normalizer import (
    joined,
    normalize,
    with_normalizer_gradient,
    with_ones,
)
from keras_performer.ops.segments import segment_numbers
from keras_performer.ops.shapes import (
    ceil_div,
    from_chunks,
    pad,
    repeat,
    size,
    sizes,
    slice_of,
    to_chunks,
)
from keras_performer.ops.visibility import mask_or_all


class Causal:
    """The forward and backward loops of causal attention, with their sizes and masks.

    In the loops, with the shapes of `Kernel`:

        x, a, p    queries, projected queries, their features
        y, b, e    keys, projected keys, their features
        v          values with a column of ones
        r, sums    stabilizer and sums before a block
        d...       a gradient; d alone: the gradient of the sums of a query, times the
                   sum of its weights

    Args:
        kernel: a `Kernel`.
        reach: a `Reach`.
        chunk_size: int, tokens of a chunk; `None` for the default.
        masks: `(seen, starts)`: bool tensors `(B, before + T)`, true for visible keys,
            and `(B, T)`, as in `Visibility`; or `None`.
        tensors: query, key and value, `(B, T, N, H)` and `(B, before + T, K, ...)`. If
            the reach is bidirectional, the loops add their reverses.
        gain: tensor `(N, 1)`, the log-gain of far weights, or `None`.
        gates: log-decays of the keys, `(B, before + T, K, 1)`, or `None`.
        fade: common log-decays of the far weights of each query, `(B, T, K, 1)`; `None`
            without gates or a delay.
    """

    def __init__(
        self, kernel, reach, chunk_size, masks, tensors, gain, gates=None, fade=None
    ):
        query, key, value = reach.with_reverses(*tensors)
        self.kernel, self.reach, self.query, self.fade = kernel, reach, query, fade
        self.keys = [key, value] if gates is None else [key, value, gates]
        self.with_gates = gates is not None
        self.heads = heads = Heads(query, key, value)
        self.gain = None
        if gain is not None:
            self.gain = tf.reshape(gain, (-1, 1, heads.group, 1))
        self.length = length = size(query, 1)
        defaults = block_sizes()
        chunk, most = chunk_size or defaults.chunk, defaults.max_chunks
        budget = tokens_per_block(query, kernel.num_features(key.shape[3]))
        chunks = min(max(budget // chunk, 1), most)
        if isinstance(length, int):
            chunks = min(chunks, ceil_div(max(length, 1), chunk))
        lead, near_chunk = reach.delay, 1
        if reach.near:
            self.band = reach.band(heads)
            lead = max(lead, self.band.lead)
            near_chunk = self.band.chunk
            least = min(ceil_div(near_chunk, chunk), most)
            # a power of two, like `near_chunk`: a block has whole chunks of both
            chunks = 1 << (max(chunks, least) - 1).bit_length()
        self.chunks = chunks
        multiple = max(chunks, near_chunk)
        tokens = max(chunks * chunk, multiple)
        self.blocks = Blocks(length, tokens, multiple=multiple)
        self.halo = Halo(self.blocks, lead, 0, reach.before)
        self._see(*masks, key)
        self._queries = self.blocks.cut(query)
        self._padded_keys = [self.halo.pad(x) for x in self.keys]
        self._fades = None if fade is None else self.blocks.cut(fade)

    def _see(self, seen, starts, key):
        """Pads the masks to whole blocks and the first halo."""
        blocks, halo, (_, (_, end)) = self.blocks, self.halo.size, self.halo.paddings
        if blocks.padded or halo:
            seen = mask_or_all(seen, key)
        self.seen = self.far_seen = self.numbers = None
        if seen is not None:
            self.seen = pad(seen, self.halo.paddings)
            # without the last `delay` keys, which are far from no query here
            far = slice_of(self.seen, halo - self.reach.delay, self.length)
            self.far_seen = blocks.cut(far)
        if starts is not None:
            # tokens before the first belong to segment 0, as does the state
            starts = pad(starts, [[0, 0], [halo + 1, end]])
            self.numbers = segment_numbers(starts)

    # -- Inputs of a block.

    def _read(self, i):
        """Returns queries of block i; and keys, values and gates of it and its halo.

        The shapes are `(X, rows, H)` and `(X, halo + tokens, dim)`; without gates they
        are `None`.
        """
        found = [self.halo.read(x, i) for x in self._padded_keys]
        found = [self.heads.rows_of_keys(x) for x in found]
        x = self.heads.query_rows(self._queries, i)
        return x, found if self.with_gates else [*found, None]

    def far(self, x):
        """Returns the far keys in the result of `_read`, `(X, tokens, dim)`."""
        if not self.halo.size:
            return x
        return slice_of(x, self.halo.size - self.reach.delay, self.blocks.tokens)

    def _near(self, i, x, y, v, gates):
        """Returns the near pairs of block i, as in `Band.pairs`."""
        first = self.halo.size - self.band.lead
        length = self.band.lead + self.blocks.tokens
        if first:
            y, v = (slice_of(z, first, length) for z in (y, v))
            gates = None if gates is None else slice_of(gates, first, length)
        start, visible = i * self.blocks.tokens + first, None
        if self.numbers is not None:
            # the first number belongs to the token before the halo
            numbers = slice_of(self.numbers, start + 1, length)
            visible = self.band.same_segment(numbers)
        seen = slice_of(self.seen, start, length)
        return self.band.pairs(x, y, v, seen, visible, gates)

    def _pairs(self, i, mask):
        """Returns the `Pairs` of block i."""
        tokens, group = self.blocks.tokens // self.chunks, self.heads.group
        visible, shares = triangle(tokens, group), None
        if self.reach.bidirectional and not self.reach.delay:
            shares = log_halves(tokens, group, self.heads.dtype)
        if self.numbers is None:
            return pairs_of(visible, shares, mask)
        halo = self.halo.size
        start, count = i * self.blocks.tokens, halo + self.blocks.tokens + 1
        numbers = self.heads.rows_of_mask(slice_of(self.numbers, start, count))

        def in_chunks(first):
            # the first number belongs to the token before the halo
            x = slice_of(numbers, first, self.blocks.tokens)
            return to_chunks(x, self.chunks)

        first = halo - self.reach.delay
        return pairs_of_segments(
            visible,
            shares,
            mask,
            repeat(in_chunks(halo + 1), group, 2),
            in_chunks(first + 1),
            in_chunks(first)[:, :, :1],
        )

    def _block(self, i, x, y, v, gates, r, sums):
        """Returns block i, and its far keys, their values with ones, and their mask."""
        y, v = self.far(y), with_ones(self.far(v))
        mask = self.heads.mask_rows(self.far_seen, i)
        cut = lambda x: to_chunks(x, self.chunks)  # noqa: E731
        in_chunks = None if mask is None else cut(mask)
        if gates is not None:
            gates = cut(self._of_sequence(i, self.far(gates)))
        block = chunkwise.block_of(
            self.kernel,
            cut(self.kernel.project_queries(x)),
            cut(self.kernel.project_keys(y, mask)),
            cut(v),
            in_chunks,
            self._pairs(i, in_chunks),
            r,
            sums,
            gates,
            self.heads.group,
        )
        return block, (y, v, mask)

    def _of_sequence(self, i, gates):
        """Returns gates of far keys, or gradients; 0 for keys far from no query.

        The final state belongs to the last query, so gates of later keys must not
        decay it.
        """
        tokens = self.blocks.tokens
        if not (self.blocks.padded and self.reach.delay):
            return gates
        within = i * tokens + tf.range(tokens) < self.length
        return tf.where(within[:, tf.newaxis], gates, 0.0)

    def _left_out(self, i, block):
        """Returns the logarithm of a factor missing in far weights, `(X, rows, 1)`."""
        if block.decays is None:
            return None
        found = from_chunks(block.decays.scale)
        if self.fade is None:
            return found
        return found + repeat(self.heads.key_rows(self._fades, i), self.heads.group, 1)

    # -- The loops.

    def forward(self, r, sums):
        """Computes attention, the state after it, and the residuals of `backward`.

        Returns:
            `(output, r, sums, *logs), saved`: weighted means of values, `(B, T, N, V)`;
            the state after the last token; the log-sums, `(B, T, N, 1)`, and without a
            gain their signs, neither if causal without a gain; the residuals.
        """
        kernel, heads, blocks = self.kernel, self.heads, self.blocks
        query, value, start = self.query, self.keys[1], (r, sums)
        # a single block starts from the initial state: no array of states
        kept = start if blocks.many else ()

        def step(i, state, states, *arrays):
            states = [z.write(i, s) for z, s in zip(states, state)]
            r, sums = state
            x, read = self._read(i)
            block, _ = self._block(i, x, *read, r, sums)
            found = chunkwise.forward(kernel, block)
            weighted, peak = map(from_chunks, found)
            normalizer = kernel.normalizer(peak, weighted[..., -1:])
            found = [normalize(weighted)]
            lacks = self._left_out(i, block)
            if self.gain is not None:
                found += normalizer, lacks
                *found, normalizer = self._with_near(i, x, read, *found)
            elif self.reach.bidirectional:
                log = kernel.log_normalizer(normalizer)
                found.append(log if lacks is None else log + lacks)
                found.append(kernel.sign(normalizer))
            found = [heads.query_block(z) for z in found]
            arrays = [z.write(i, x) for z, x in zip(arrays, (normalizer, *found))]
            state = shaped((block.references.r_new, block.end), state)
            return state, states, *arrays

        shapes = [heads.number_shape(query, blocks.tokens)]
        shapes.append(blocks.block_shape(query, size(value, 3)))
        num_logs = 2 * self.reach.bidirectional if self.gain is None else 1
        shapes += [blocks.block_shape(query, 1)] * num_logs
        states = [blocks.array(heads.dtype, sizes(z)) for z in kept]
        arrays = [blocks.array(heads.dtype, shape) for shape in shapes]
        (r, sums), states, normalizers, *found = blocks.loop(
            step, (start, states, *arrays)
        )
        states = [z.stack() for z in states] or [z[tf.newaxis] for z in start]
        shape = query.shape[:3]
        dims = value.shape[3], 1, 1
        output, *logs = (blocks.join(z, (*shape, dim)) for z, dim in zip(found, dims))
        return (output, r, sums, *logs), (normalizers.stack(), states)

    def backward(self, results, saved, dresults):
        """Computes gradients, in this order, of what is given of these.

        Query, key, value, the sums before, gain, gates, fade and `kernel.trained`.
        `results` and `saved` are from `forward`, `dresults` the gradients of results.
        """
        kernel, heads, blocks = self.kernel, self.heads, self.blocks
        output, _, _, log_sums = (*results, None)[:4]
        doutput, _, dsums, dlog_sums = (*dresults, None)[:4]
        normalizers, states = saved
        rows = [
            None if z is None else blocks.cut(z)
            for z in (doutput, output, dlog_sums, log_sums)
        ]

        def step(i, dend, dtrained, dgain):
            r, sums = (tf.gather(z, i) for z in states)
            x, read = self._read(i)
            block, (far_y, far_v, mask) = self._block(i, x, *read, r, sums)
            *ends, log = (None if z is None else heads.query_rows(z, i) for z in rows)
            d = with_normalizer_gradient(*ends)
            found = chunkwise.backward(
                kernel,
                block,
                to_chunks(d, self.chunks),
                to_chunks(tf.gather(normalizers, i), self.chunks),
                dend,
                self.gain is not None,
            )
            dx, of_queries = kernel.pull_queries(x, from_chunks(found.da))
            db, dv = from_chunks(found.db), from_chunks(found.dv)
            dy, of_keys = kernel.pull_keys(far_y, mask, db, far_v, dv)
            dkeys = [dy, dv[..., :-1]]
            if self.with_gates:
                dkeys.append(self._of_sequence(i, from_chunks(found.dgates)))
            if self.gain is not None:
                dlog = from_chunks(found.dlog)
                dgain += tf.reduce_sum(heads.query_block(dlog), (0, 1))
                dx += kernel.pull_left_out(x, dlog)
            if self.reach.near:
                pairs = self._near(i, x, *read)
                dx_near, *near = self.band.backward(pairs, d, log, self.with_gates)
                dx += dx_near
                first = [[0, 0], [self.halo.size - self.band.lead, 0], [0, 0]]
                dkeys = [
                    self._in_halo(z) + tf.pad(w, first) for z, w in zip(dkeys, near)
                ]
            elif self.halo.size:
                dkeys = [self._in_halo(z) for z in dkeys]
            dqueries = [heads.query_block(dx)]
            if self.fade is not None:
                by_head = tf.reshape(dlog, (size(dlog, 0), -1, heads.group))
                dfade = tf.reduce_sum(by_head, -1, keepdims=True)
                dqueries.append(heads.key_block(dfade))
            dkeys = [heads.key_block(z) for z in dkeys]
            dtrained = [w + y + z for w, y, z in zip(dtrained, of_queries, of_keys)]
            (dend,) = shaped([found.dsums], [dend])
            return dqueries, dkeys, (dend, dtrained, dgain)

        dgain = ()
        if self.gain is not None:
            dgain = tf.zeros((self.query.shape[2], 1), heads.dtype)
        dtrained = [tf.zeros_like(z) for z in kernel.trained]
        queries = [self.query] if self.fade is None else [self.query, self.fade]
        start = dsums, dtrained, dgain
        (dquery, *dfade), (dkey, dvalue, *dgates), (dsums, dtrained, dgain) = (
            self.halo.gradients(step, start, queries, self.keys, heads.dtype)
        )
        inputs = self.reach.pull_reverses(dquery, dkey, dvalue)
        dgain = [] if self.gain is None else [dgain]
        return *inputs, dsums, *dgain, *dgates, *dfade, *dtrained

    def _with_near(self, i, x, read, output, normalizer, lacks):
        """Adds the gain and the near keys to the results for far keys.

        Args:
            i, x: the block, and its queries.
            read: the keys, values and gates that it reads.
            output, normalizer: results for far keys.
            lacks: result of `_left_out`.

        Returns:
            `(output, log_sums, normalizer)`, the results for all keys; the normalizer
            makes far weights shares of all weights.
        """
        kernel = self.kernel
        log = kernel.log_normalizer(normalizer)
        sees = log > EMPTY
        gain = self._gain_of(x) + kernel.log_left_out(x)
        gain = gain if lacks is None else gain + lacks
        total = log + gain
        if self.reach.near:
            near = self.band.forward(*self._near(i, x, *read))
            output, total = joined([near, (output, total)])
        share = tf.where(sees, total - gain, EMPTY)
        return output, total, kernel.normalizer_of(share)

    def _gain_of(self, x):
        """Returns the log-gain of each row, `(X, rows, 1)`."""
        group = self.heads.group
        shape = size(x, 0) // self.heads.num_key_value_heads, 1, size(x, 1) // group
        gain = tf.tile(self.gain, (shape[0], shape[2], 1, 1))
        return tf.reshape(gain, (size(x, 0), size(x, 1), 1))

    def _in_halo(self, x):
        """Pads gradients of far keys with zeros, to the halo and the block."""
        delay = self.reach.delay
        return tf.pad(x, [[0, 0], [self.halo.size - delay, delay], [0, 0]])
