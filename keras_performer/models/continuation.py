"""Sequences on their way: prompts are read, tokens made, rows end one by one."""

import dataclasses
import itertools
import typing

import numpy as np
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers import state as layer_state
from keras_performer.models import prompts, token_loop
from keras_performer.models.performer_lm import PerformerLM
from keras_performer.models.sampling import Sampling


@dataclasses.dataclass
class Continuation:
    """A request to continue sequences: prompts, length and sampling, all checked.

    Args:
        model: a `PerformerLM` with a state.
        prompts: `Prompts`, each of which is continued `prompts.repeats` times.
        max_length: int, the length of each sequence that no stop token ends.
        stops: int32 array of the tokens that end a sequence, or `None`.
        options: `Sampling`.
    """

    model: PerformerLM
    prompts: prompts.Prompts
    max_length: int
    stops: np.ndarray | None
    options: Sampling

    def pieces(self, size):
        """Makes tokens, `size` at a time at most, but for the first.

        Yields:
            A list of int32 arrays, the new tokens of each sequence.
        """
        stops = None if self.stops is None else tf.constant(self.stops, tf.int32)
        read, extend = token_loop.compiled(self.model, self.options, stops is not None)
        # shortest first: rows that are complete are then the last ones
        order = np.argsort([len(ids) for ids in self.prompts.ids], kind="stable")
        repeats = self.prompts.repeats
        rows = (order[:, np.newaxis] * repeats + np.arange(repeats)).ravel()
        ids = [self.prompts.ids[row // repeats] for row in rows]
        lengths = np.array([len(row) for row in ids])
        logits, state = self._read(read, order)
        seen = ended = ()
        if self.options.repetition_penalty is not None:
            seen = tf.constant(_seen(ids, logits.shape[-1]))
        if stops is not None:
            ended = tf.zeros(len(rows), tf.bool)
        carry = token_loop.Carry((), state, seen, ended)
        # the draws of a row depend on none that is longer: on the place of the row, and
        # on how long the shortest sequence is
        position = tf.constant(lengths[0], tf.int32)
        carry, finite = token_loop.draw(self.options, stops, logits, carry, position)
        _check_finite(self.model, finite)
        tokens, length = carry.token.numpy(), lengths + 1
        has_ended = np.zeros(len(rows), bool)
        while True:
            new = [tokens[0, :0]] * len(rows)
            kept = self._kept(tokens, has_ended)
            for row, piece in zip(rows, kept):
                new[row] = piece
            yield new
            going_on = np.searchsorted(length, self.max_length)
            has_ended = has_ended[:going_on]
            if has_ended.all():
                return
            if going_on < len(tokens):
                carry = _first_rows(carry, going_on)
            count = min(size, self.max_length - length[going_on - 1])
            span = tf.constant(length[0], tf.int32), tf.constant(count, tf.int32)
            tokens, carry, finite = extend(self.options, stops, carry, *span)
            _check_finite(self.model, finite)
            tokens = tokens.numpy().T.copy()
            length = length[:going_on] + tokens.shape[1]

    def _read(self, read, order):
        """Logits and state after the prompts; those of one length are read at once."""
        ordered = [self.prompts.ids[index] for index in order]
        read_so_far = []
        for _, group in itertools.groupby(ordered, key=len):
            tokens = tf.constant(np.stack(list(group)), tf.int32)
            state = self.model.get_initial_state(tokens.shape[0])
            read_so_far.append(read(tokens, state))

        def joined(*parts):
            whole = tf.concat(parts, 0) if len(parts) > 1 else parts[0]
            repeats = self.prompts.repeats
            return tf.repeat(whole, repeats, axis=0) if repeats > 1 else whole

        return tf.nest.map_structure(joined, *read_so_far)

    def _kept(self, tokens, has_ended):
        """The tokens of each row up to its end; notes in `has_ended` where that is."""
        if self.stops is None:
            return list(tokens)
        is_stop = np.isin(tokens, self.stops)
        stopped = is_stop.any(1)
        counts = np.where(stopped, is_stop.argmax(1) + 1, tokens.shape[1])
        counts[has_ended] = 0
        has_ended |= stopped
        return [row[:count] for row, count in zip(tokens, counts)]


def begin(
    model: PerformerLM,
    prompt: typing.Any,
    max_length: int,
    num_samples: int | None,
    stop_tokens: typing.Any,
    options: Sampling,
) -> Continuation:
    """The arguments of `generate` as a `Continuation`, if all is well with them."""
    _check_model(model)
    num_samples = arguments.positive_int("num_samples", num_samples, default=None)
    given = prompts.read(model, prompt, num_samples)
    max_length = _checked_length(model, given, max_length)
    stops = _checked_stops(model, stop_tokens)
    return Continuation(model, given, max_length, stops, options)


def _first_rows(carry, count):
    return tf.nest.map_structure(lambda x: x[:count], carry)


def _seen(ids, size):
    """Mask of the tokens that rows have, bool `(B, V)`."""
    seen = np.zeros((len(ids), size), bool)
    for row, tokens in enumerate(ids):
        # a model with inputs of its own may read what it never draws
        seen[row, tokens[(tokens >= 0) & (tokens < size)]] = True
    return seen


def _check_finite(model, finite):
    if not finite:
        raise ValueError(
            "The model's logits are not finite, so that no token can be drawn (-inf is "
            "a token that is never drawn, but not all may be). Look for NaN or inf in "
            f"model.get_weights(). Received: model={model.name!r}"
        )


def _check_model(model):
    if not isinstance(model, PerformerLM) or not model.causal:
        raise ValueError(
            "generate needs a PerformerLM with causal=True: make the model so. "
            f"Received: model={model!r}"
        )
    for block in model.blocks:
        if block.attention is not None and not block.attention.supports_state:
            raise ValueError(
                'generate needs an attention with a state, such as attention="performer'
                f'": {layer_state.no_state(block.attention)}'
            )


def _checked_length(model, given, max_length):
    max_length = arguments.positive_int("max_length", max_length)
    longest = max(len(ids) for ids in given.ids)
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
    return stops.astype("int32")
