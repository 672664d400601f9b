"""Continuations of prompts: reads prompts, makes tokens, and ends rows one by one."""

import itertools
import operator

import keras
import numpy as np
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers import state as layer_state
from keras_performer.models import token_loop
from keras_performer.models.performer_lm import PerformerLM


class Continuation:
    """Checked arguments of `generate`, and the tokens that it makes from them.

    `prompts` is a list of int32 arrays `(P,)`, the prompt of each continuation.
    """

    def __init__(self, model, prompt, max_length, num_samples, stop_tokens, options):
        _check_model(model)
        self.model = model
        count = arguments.positive_int("num_samples", num_samples, default=None)
        self.num_samples, self._repeats = count, count or 1
        if isinstance(prompt, str) or _all(str, prompt):
            raise ValueError(
                "prompt must be ints or bytes: encode text, as with text.encode() for "
                f"a model of bytes. Received: prompt={prompt!r}"
            )
        self._is_one = isinstance(prompt, bytes)
        texts = [prompt] if self._is_one else prompt
        self.are_bytes = _all(bytes, texts)
        if self.are_bytes and model.vocabulary_size > 256:
            raise ValueError(
                "prompt must be ints for a model whose tokens are not bytes: bytes "
                "need vocabulary_size=256 or less. Received: prompt of bytes, and a "
                f"model with vocabulary_size={model.vocabulary_size}"
            )
        if self.are_bytes:
            rows = [np.frombuffer(text, np.uint8) for text in texts]
        else:
            rows = _rows(prompt)
        prompts = [_checked(model, index, row) for index, row in enumerate(rows)]
        self.prompts = [ids for ids in prompts for _ in range(self._repeats)]
        self._max_length = _checked_length(model, prompts, max_length)
        self.options = options._replace(stop_tokens=_checked_stops(model, stop_tokens))

    def answer(self, rows):
        """Returns rows of tokens, grouped by prompt, in the form of the prompts."""
        if self.are_bytes:
            rows = [row.astype("uint8").tobytes() for row in rows]
        if self.num_samples is not None:
            starts = range(0, len(rows), self.num_samples)
            rows = [rows[start : start + self.num_samples] for start in starts]
        return rows[0] if self._is_one else rows

    def pieces(self, size):
        """Yields lists of int32 arrays, the new tokens of each sequence.

        The first token comes alone, then at most `size` tokens at a time.
        """
        read, extend = token_loop.compiled(self.model, self.options)
        # shortest first, so that the last rows are complete first
        rows = np.argsort([len(ids) for ids in self.prompts], kind="stable")
        prompts = [self.prompts[row] for row in rows]
        lengths = np.array([len(ids) for ids in prompts])
        logits, state = self._read(read, prompts[:: self._repeats])
        seen = ended = ()
        if self.options.repetition_penalty is not None:
            seen = tf.constant(_seen(prompts, logits.shape[-1]))
        if self.options.stop_tokens is not None:
            ended = tf.zeros(len(rows), tf.bool)
        carry = token_loop.Carry((), state, seen, ended)
        # samples of a row do not depend on longer rows, only on the index of the row
        # and the length of the shortest sequence
        position = tf.constant(lengths[0], tf.int32)
        carry, finite = token_loop.draw(self.options, logits, carry, position)
        self._check_finite(finite)
        tokens, length = carry.token.numpy(), lengths + 1
        has_ended = np.zeros(len(rows), bool)
        while True:
            new = [tokens[0, :0]] * len(rows)
            for row, piece in zip(rows, self._kept(tokens, has_ended)):
                new[row] = piece
            yield new
            going_on = np.searchsorted(length, self._max_length)
            has_ended = has_ended[:going_on]
            if has_ended.all():
                return
            if going_on < len(tokens):
                carry = tf.nest.map_structure(
                    operator.itemgetter(slice(going_on)), carry
                )
            count = min(size, self._max_length - length[going_on - 1])
            span = tf.constant(length[0], tf.int32), tf.constant(count, tf.int32)
            tokens, carry, finite = extend(self.options, carry, *span)
            self._check_finite(finite)
            tokens = tokens.numpy().T.copy()
            length = length[:going_on] + tokens.shape[1]

    def _read(self, read, prompts):
        """Returns logits and state after prompts; reads equally long ones at once."""
        read_so_far = []
        for _, group in itertools.groupby(prompts, key=len):
            tokens = tf.constant(np.stack(list(group)), tf.int32)
            state = self.model.get_initial_state(tokens.shape[0])
            read_so_far.append(read(tokens, state))

        def joined(*parts):
            whole = tf.concat(parts, 0) if len(parts) > 1 else parts[0]
            repeats = self._repeats
            return tf.repeat(whole, repeats, axis=0) if repeats > 1 else whole

        return tf.nest.map_structure(joined, *read_so_far)

    def _kept(self, tokens, has_ended):
        """Returns the tokens of each row up to its end; marks it in `has_ended`."""
        if self.options.stop_tokens is None:
            return list(tokens)
        is_stop = np.isin(tokens, self.options.stop_tokens)
        stopped = is_stop.any(1)
        counts = np.where(stopped, is_stop.argmax(1) + 1, tokens.shape[1])
        counts[has_ended] = 0
        has_ended |= stopped
        return [row[:count] for row, count in zip(tokens, counts)]

    def _check_finite(self, finite):
        if not finite:
            raise ValueError(
                "The model's logits are not finite, so no token can be sampled (a "
                "logit of -inf excludes a token, but at least one logit must be "
                "finite). Look for NaN or inf in model.get_weights(). Received: "
                f"model={self.model.name!r}"
            )


def _check_model(model):
    if not isinstance(model, PerformerLM) or not model.causal:
        raise ValueError(
            "generate needs a causal PerformerLM: make the model with causal=True. "
            f"Received: model={model!r}"
        )
    for block in model.blocks:
        if block.attention is not None and not block.attention.supports_state:
            raise ValueError(
                'generate needs an attention with a state, such as attention="performer'
                f'": {layer_state.no_state(block.attention)}'
            )


def _all(kind, prompt):
    is_list = isinstance(prompt, (list, tuple)) and prompt
    return is_list and all(isinstance(one, kind) for one in prompt)


def _rows(prompt):
    """Returns ints as a list of arrays, which may have different lengths."""
    if isinstance(prompt, tf.RaggedTensor):
        prompt = prompt.to_list()
    try:
        rows = [np.asarray(row) for row in prompt]
    except (TypeError, ValueError):  # a scalar, or rows of which NumPy makes no arrays
        rows = []
    if not rows or any(row.ndim != 1 for row in rows):
        shapes = sorted({row.shape for row in rows})
        raise ValueError(
            "prompt must be ints of shape (batch, length), a list of sequences of ints "
            "with at least one token in each, or, for a model of bytes, bytes or a "
            f"list of them. Received: prompt of type {type(prompt).__name__}, with "
            f"elements of shapes {shapes}"
        )
    return rows


def _checked(model, index, row):
    if not row.size:
        raise ValueError(
            "prompt must have at least one token in each sequence. Received: "
            f"prompt[{index}] of length 0"
        )
    if not np.issubdtype(row.dtype, np.integer):
        raise ValueError(
            "prompt must be ints, the ids of tokens. Received: prompt of dtype "
            f"{row.dtype.name}"
        )
    first, last = tf.int32.min, tf.int32.max
    if isinstance(model.embedding, keras.layers.Embedding):
        first, last = 0, model.embedding.input_dim - 1
    wrong = (row < first) | (row > last)
    if wrong.any():
        column = np.argmax(wrong)
        raise ValueError(
            f"prompt must hold ids of tokens, ints from {first} to {last}. Received: "
            f"prompt[{index}, {column}] = {row[column]}"
        )
    return row.astype("int32")


def _checked_length(model, prompts, max_length):
    max_length = arguments.positive_int("max_length", max_length)
    longest = max(map(len, prompts))
    received = f"Received: max_length={max_length}, and a prompt of {longest} tokens"
    if max_length <= longest:
        raise ValueError(
            f"max_length must be more than the length of the prompt. {received}"
        )
    limit = model.max_length
    if limit is not None and max_length > limit + 1:
        raise ValueError(
            f"max_length must be at most model.max_length + 1 = {limit + 1}: the last "
            f"token is not read again. {received}"
        )
    return max_length


def _checked_stops(model, stop_tokens):
    if stop_tokens is None:
        return None
    stops = np.atleast_1d(np.asarray(stop_tokens))
    last = model.vocabulary_size - 1
    is_int = np.issubdtype(stops.dtype, np.integer) or not stops.size
    if not is_int or stops.ndim != 1 or ((stops < 0) | (stops > last)).any():
        raise ValueError(
            "stop_tokens must be None, an id or a list of ids, ints from 0 to "
            f"{last}. Received: stop_tokens={stop_tokens!r}"
        )
    return tf.constant(stops, tf.int32)


def _seen(ids, size):
    """Returns a mask of the tokens that each row has, bool `(B, V)`."""
    seen = np.zeros((len(ids), size), bool)
    for row, tokens in enumerate(ids):
        # a custom embedding may read ids that the model never samples
        seen[row, tokens[(tokens >= 0) & (tokens < size)]] = True
    return seen
