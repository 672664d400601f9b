"""Prompts of `generate`, and the form in which it answers."""

import dataclasses
import typing

import keras
import numpy as np
import tensorflow as tf

from keras_performer.models.performer_lm import PerformerLM


@dataclasses.dataclass
class Prompts:
    """Sequences to continue, and what the caller gave them as.

    Args:
        ids: list of int32 arrays `(P,)`, of at least one token each.
        num_samples: int, how many continuations each prompt gets, or `None` for one,
            without an axis for it.
        are_bytes: bool, whether they came as bytes.
        is_one: bool, whether one came without a list around it.
    """

    ids: list
    num_samples: int | None
    are_bytes: bool
    is_one: bool

    @property
    def repeats(self):
        return 1 if self.num_samples is None else self.num_samples

    def answer(self, rows):
        """Rows of tokens, `repeats` for each prompt, in the form of the prompts."""
        if self.are_bytes:
            rows = [row.astype("uint8").tobytes() for row in rows]
        if self.num_samples is not None:
            starts = range(0, len(rows), self.num_samples)
            rows = [rows[start : start + self.num_samples] for start in starts]
        return rows[0] if self.is_one else rows


def read(model: PerformerLM, prompt: typing.Any, num_samples: int | None) -> Prompts:
    """The argument `prompt` of `generate`, if all is well with it."""
    if isinstance(prompt, str) or _all(str, prompt):
        raise ValueError(
            "prompt must be ints or bytes: encode text, as with text.encode() for a "
            f"model of bytes. Received: prompt={prompt!r}"
        )
    is_one = isinstance(prompt, bytes)
    texts = [prompt] if is_one else prompt
    are_bytes = _all(bytes, texts)
    if are_bytes:
        _check_reads_bytes(model)
        rows = [np.frombuffer(text, np.uint8) for text in texts]
    else:
        rows = _rows(prompt)
    ids = [_checked(model, index, row) for index, row in enumerate(rows)]
    return Prompts(ids, num_samples, are_bytes, is_one)


def _all(kind, prompt):
    is_list = isinstance(prompt, (list, tuple)) and prompt
    return is_list and all(isinstance(one, kind) for one in prompt)


def _rows(prompt):
    """Ints as a list of arrays; they need not have equal lengths."""
    if isinstance(prompt, tf.RaggedTensor):
        prompt = prompt.to_list()
    if isinstance(prompt, (list, tuple)):
        try:
            rows = [np.asarray(row) for row in prompt]
        except ValueError:  # of NumPy, for rows that are no arrays
            rows = []
        shapes = sorted({row.shape for row in rows})
        received = f"a list with elements of shapes {shapes}"
    else:
        array = np.asarray(prompt)
        rows = list(array) if array.ndim else []
        received = f"prompt of shape {array.shape}"
    if not rows or any(row.ndim != 1 for row in rows):
        raise ValueError(
            "prompt must be ints of shape (batch, length), a list of sequences of ints "
            "with at least one token in each, or, for a model of bytes, bytes or a "
            f"list of them. Received: {received}"
        )
    return rows


def _check_reads_bytes(model):
    if model.vocabulary_size > 256:
        raise ValueError(
            "prompt must be ints for a model whose tokens are not bytes: bytes need "
            "vocabulary_size=256 or less. Received: prompt of bytes, and a model with "
            f"vocabulary_size={model.vocabulary_size}"
        )


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
    first, last = _allowed_ids(model)
    wrong = (row < first) | (row > last)
    if wrong.any():
        column = np.argmax(wrong)
        raise ValueError(
            f"prompt must hold ids of tokens, ints from {first} to {last}. Received: "
            f"prompt[{index}, {column}] = {row[column]}"
        )
    return row.astype("int32")


def _allowed_ids(model):
    """The smallest and the largest int that the model may read."""
    if isinstance(model.embedding, keras.layers.Embedding):
        return 0, model.embedding.input_dim - 1
    return tf.int32.min, tf.int32.max
