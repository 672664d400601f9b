"""Calls the signatures `prefill` and `decode` of an exported model.

Their inputs and outputs are `tokens`, `logits`, and entries with names `state_...`,
which have one row for each sequence. So this module serves a state of sums and a cache
of keys and values alike.
"""

import logging
import pathlib

import numpy as np
import tensorflow as tf

_log = logging.getLogger("uvicorn.error")


class ExportedModel:
    """A causal model, loaded without its code.

    Args:
        folder: a SavedModel with two signatures. `prefill` takes `tokens` `(B, T)`,
            `decode` takes `tokens` `(B, 1)` and the state. Both return `logits`
            `(B, V)` and the state. B and T may have any size.
    """

    def __init__(self, folder):
        if not pathlib.Path(folder, "saved_model.pb").is_file():
            raise ValueError(
                "The folder must hold a SavedModel, which `model.export(folder)` "
                f"writes. Received: {str(folder)!r}"
            )
        self._loaded = tf.saved_model.load(folder)  # owns the weights
        signatures = self._loaded.signatures
        if not {"prefill", "decode"} <= {*signatures}:
            raise ValueError(
                "The model must have the signatures prefill and decode: export a "
                f"causal model with a state. Received: {sorted(signatures)}"
            )
        self._prefill, self._decode = signatures["prefill"], signatures["decode"]
        _, inputs = self._prefill.structured_input_signature
        self._dtype = inputs["tokens"].dtype.as_numpy_dtype
        self.vocabulary_size = self._decode.structured_outputs["logits"].shape[-1]
        # the first call of each graph is slow, so call them now
        _, self._blank = self.prefill(np.zeros((1, 1)))
        self.decode(np.zeros(1), self._blank)

    def prefill(self, tokens):
        """Reads prompts of one length.

        Args:
            tokens: int array of shape `(B, T)`.

        Returns:
            `(logits, state)`: logits of the next token, float32 array of shape
            `(B, V)`, and dict of tensors with a row for each prompt. If the model fails
            for some rows, only the logits of these rows are NaN.
        """
        return self._call(self._prefill, tokens, {})

    def decode(self, tokens, state):
        """Reads one more token of each sequence, `(B,)`; returns as `prefill`."""
        return self._call(self._decode, tokens[:, np.newaxis], state)

    def _call(self, signature, tokens, state):
        try:
            tensor = tf.constant(tokens.astype(self._dtype))
            state = dict(signature(tokens=tensor, **state))
            return tf.cast(state.pop("logits"), tf.float32).numpy(), state
        except tf.errors.OpError:
            if len(tokens) == 1:
                _log.exception("The model failed for one sequence.")
                nothing = np.full((1, self.vocabulary_size), np.nan, "float32")
                return nothing, state or self._blank
        # find the sequence that fails, so that it does not end the others
        parts = [
            self._call(signature, tokens[rows], select(state, rows))
            for rows in np.array_split(np.arange(len(tokens)), 2)
        ]
        logits, states = zip(*parts)
        return np.concatenate(logits), join(states)


def select(state, rows):
    """Returns these rows of a state."""
    rows = tf.constant(rows, tf.int32)
    return {name: tf.gather(entry, rows) for name, entry in state.items()}


def join(states):
    """Concatenates the rows of several states."""
    first = states[0]
    return {name: tf.concat([state[name] for state in states], 0) for name in first}
