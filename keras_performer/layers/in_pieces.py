"""Attention to both sides in pieces of a sequence, which is never there as a whole."""

import tensorflow as tf

from keras_performer import ops


class InPieces:
    """The two passes of bidirectional self-attention of a `PerformerAttention`.

    Without a window `absorb` and `answer`, with one `look_ahead` and `look_back`.
    """

    def absorb(self, x, mask, state, positions=None):
        """The first pass of bidirectional self-attention in pieces of a sequence.

        With `answer` it is what a call of the layer does at once.

        Args:
            x: tensor of shape `(B, tokens, dim)`, one piece.
            mask: bool tensor of shape `(B, tokens)`, false for keys that nothing sees,
                or `None`.
            state: the entry "attention" of a state, from `empty_state` or the piece
                before.
            positions: int tensor of shape `(B, tokens)`, those in the whole sequence;
                needed with `rotary`.

        Returns:
            The same after the keys and values of this piece.
        """
        key, value = self.project("key", x, positions), self.project("value", x)
        state = self._as_state(state)
        return ops.absorb_keys(key, value, self.kernel(), mask, state)._asdict()

    def answer(self, x, mask, state, training=None, positions=None):
        """The second pass: what the layer returns for a piece.

        Args:
            x, mask: as in `absorb`; rows where the mask is false see no key.
            state: after the last piece's `absorb`.
            training: bool, whether to apply dropout.
            positions: as in `absorb`.

        Returns:
            Tensor of shape `(B, tokens, output_shape)`.
        """
        query = self.project("query", x, positions)
        attended = ops.answer_queries(query, self.kernel(), self._as_state(state))
        return self.write(attended, x, mask, training)

    def look_ahead(self, x, mask, state, positions=None):
        """With a window, the first pass: what later keys add, from the last piece on.

        With `look_back` it is what a call of the layer does at once.

        Args:
            x, mask: as in `absorb`.
            state: the entry "attention" of a state, from `empty_state` or the piece
                after.
            positions: as in `absorb`.

        Returns:
            `(later, state)`: a pair of tensors for `look_back`, and the same state
            after the keys and values of this piece.
        """
        x, mask, positions = (
            z if z is None else tf.reverse(z, [1]) for z in (x, mask, positions)
        )
        *later, state = self._earlier(x, mask, state, positions, own_key=False)
        return tuple(tf.reverse(z, [1]) for z in later), state

    def look_back(self, x, mask, state, later, training=None, positions=None):
        """The second pass, from the first piece on: what the layer returns.

        Args:
            x, mask: as in `absorb`; rows where the mask is false see no key.
            state: the entry "attention" of a state, from `empty_state` or the piece
                before.
            later: from `look_ahead` of this piece.
            training: bool, whether to apply dropout.
            positions: as in `absorb`.

        Returns:
            `(output, state)`: a tensor of shape `(B, tokens, output_shape)`, and the
            state after this piece.
        """
        *earlier, state = self._earlier(x, mask, state, positions, own_key=True)
        attended, _ = ops.join_parts(earlier, later)
        attended = tf.cast(attended, self.compute_dtype)
        return self.write(attended, x, mask, training), state

    def _earlier(self, x, mask, state, positions, own_key):
        """`ops.attend_to_earlier` of a piece of the sequence, with its state."""
        output, log_sums, state = ops.attend_to_earlier(
            *(self.project(name, x, positions) for name in ("query", "key", "value")),
            self.kernel(),
            self.exact_window,
            self.log_gain_of_heads(),
            mask,
            self._as_state(state),
            self.chunk_size,
            own_key=own_key,
        )
        return output, log_sums, state._asdict()
