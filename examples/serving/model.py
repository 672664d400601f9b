"""The signatures `prefill` and `decode` of an exported model.

Only their names are known here: `tokens`, `logits`, and whatever begins with `state_`,
each entry of which has a row for each sequence. A state of sums and a cache of keys and
values are served alike.
"""

import logging
import pathlib

import numpy as np
import tensorflow as tf

_log = logging.getLogger("uvicorn.error")


class ExportedModel:
    """A causal model without its code.

    Args:
        folder: a SavedModel with the signatures `prefill`, of `tokens` `(B, T)`, and
            `decode`, of `tokens` `(B, 1)` and the state, both to `logits` `(B, V)` and
            the state. B and T may be any.
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
        # the first call of a graph is the slowest
        _, self._blank = self.prefill(np.zeros((1, 1)))
        self.decode(np.zeros(1), self._blank)

    def prefill(self, tokens):
        """Reads prompts of one length.

        Args:
            tokens: int array of shape `(B, T)`.

        Returns:
            `(logits, state)`: of the next token, float32 array of shape `(B, V)`, and
            dict of tensors with a row for each prompt. Where the model fails for some
            of the rows, their logits are NaN, and the others what they are alone.
        """
        return self._call(self._prefill, tokens, {})

    def decode(self, tokens, state):
        """Reads one more token of each, `(B,)`; returns what `prefill` does."""
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
        # one sequence must not end the others: look for it
        parts = [
            self._call(signature, tokens[rows], select(state, rows))
            for rows in np.array_split(np.arange(len(tokens)), 2)
        ]
        logits, states = zip(*parts)
        return np.concatenate(logits), join(states)


def select(state, rows):
    """The rows of a state that are to stay."""
    rows = tf.constant(rows, tf.int32)
    return {name: tf.gather(entry, rows) for name, entry in state.items()}


def join(states):
    """One state of several, their rows one after another."""
    first = states[0]
    return {name: tf.concat([state[name] for state in states], 0) for name in first}
