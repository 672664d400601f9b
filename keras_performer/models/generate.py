"""Sampling from a causal model, token by token."""

import typing
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import numpy.typing as npt

from keras_performer.layers import arguments
from keras_performer.models.continuation import Continuation
from keras_performer.models.performer_lm import PerformerLM
from keras_performer.models.sampling import check_options

# Tokens made by one call of the compiled loop, between updates of the progress bar.
_TOKENS_PER_CALL = 256


def generate(
    model: PerformerLM,
    prompt: npt.ArrayLike | Sequence[npt.ArrayLike],
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    verbose: typing.Literal["auto", 0, 1] = "auto",
    *,
    stop_tokens: npt.ArrayLike | None = None,
    num_samples: int | None = None,
    repetition_penalty: float = 1.0,
    min_p: float | None = None,
) -> typing.Any:
    """Generates continuations of prompts with a causal model.

    A compiled loop carries the model's recurrent state, so that each token costs the
    same, however long the sequence.

    Args:
        model: a causal `PerformerLM` with a state. Models with `attention="exact"` or a
            mixer have no state.
        prompt: int array of shape `(B, P)`, or a list of B sequences of any lengths,
            each with at least one token; ids below `model.vocabulary_size`. A model
            with `vocabulary_size` of at most 256 also takes bytes, or a list of bytes.
        max_length: int, length of the returned sequences, prompt included. If the model
            has a `max_length`, at most `model.max_length + 1`, because the model does
            not read the last token.
        temperature: float, divides the logits; 0 takes the likeliest token. Defaults to
            `1.0`.
        top_k: int, sample from the k likeliest tokens only; of equally likely tokens,
            lower ids come first. Defaults to `None`.
        top_p: float in (0, 1], sample from the likeliest tokens whose probabilities
            together reach p ("nucleus sampling"). Applies after `temperature` and
            `top_k`. Defaults to `None`.
        seed: int, equal seeds give equal sequences. With `None` each call samples anew.
            Defaults to `None`.
        verbose: 0, 1 or "auto", whether to show a progress bar; "auto" shows one from
            1,000 tokens on. Defaults to `"auto"`.
        stop_tokens: an id or several. A sequence ends when one of them is sampled, and
            keeps it. Stop tokens in the prompt have no effect. Defaults to `None`.
        num_samples: int, number of continuations for each prompt. The model reads each
            prompt once. Defaults to `None`, one continuation without the extra axis.
        repetition_penalty: float. For tokens that are already in the sequence or the
            prompt, positive logits are divided by it and negative ones multiplied.
            Applies before `temperature`, even if `temperature` is 0. Defaults to `1.0`.
        min_p: float in (0, 1], sample only from tokens whose probability is at least
            `min_p` times the highest one. Applies after all other options. Defaults to
            `None`.

    Returns:
        int32 array of shape `(B, max_length)` that begins with the prompt; with
        `num_samples`, of shape `(B, num_samples, max_length)`. With `stop_tokens`
        lengths differ, so the result is a list of B arrays; with both, a list of B
        lists of arrays. Prompts of bytes give bytes in place of arrays: one value for
        one prompt, a list for a list or with `num_samples`.

    Raises:
        ValueError: if the model is not causal, has no state or returns logits that are
            not finite; if a prompt is empty or has ids out of range; or if a length or
            a sampling option is out of range.

    Example:

    >>> from keras_performer import PerformerLM
    >>> model = PerformerLM(7, max_length=16, num_layers=1, num_heads=1, hidden_dim=4)
    >>> generate(model, [[3, 1]], max_length=8, seed=0).shape
    (1, 8)

    Reference:

    - [CTRL](https://arxiv.org/abs/1909.05858), section 4.1: `repetition_penalty`,
      there for scores above 0
    - [Min-p sampling](https://arxiv.org/abs/2407.01082)
    """
    options = check_options(seed, temperature, top_k, top_p, min_p, repetition_penalty)
    work = Continuation(model, prompt, max_length, num_samples, stop_tokens, options)
    sequences = [[ids] for ids in work.prompts]
    bar = _progress_bar(max_length - min(map(len, work.prompts)), verbose)
    for pieces in work.pieces(_TOKENS_PER_CALL):
        for sequence, piece in zip(sequences, pieces):
            sequence.append(piece)
        bar.add(max(map(len, pieces)))
    answer = work.answer([np.concatenate(pieces) for pieces in sequences])
    is_array = stop_tokens is None and not work.are_bytes
    return np.array(answer) if is_array else answer


def generate_stream(
    model: PerformerLM,
    prompt: npt.ArrayLike | Sequence[npt.ArrayLike],
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    *,
    stop_tokens: npt.ArrayLike | None = None,
    num_samples: int | None = None,
    repetition_penalty: float = 1.0,
    min_p: float | None = None,
    chunk_size: int = 1,
) -> Iterator[typing.Any]:
    """Generates like `generate`, and yields tokens as soon as they are sampled.

    Args:
        model: as in `generate`, like all arguments except `chunk_size`.
        chunk_size: int, number of tokens of each sequence to yield at once. The first
            token always comes alone. Larger chunks take less time for each token.
            Defaults to `1`.

    Yields:
        A list of B int32 arrays, the new tokens of each sequence, without the prompt;
        empty after a sequence has ended. With `num_samples` a list of B lists of
        arrays. Prompts of bytes give bytes, as in `generate`. The prompt and all pieces
        together equal the result of `generate`.

    Raises:
        ValueError: as in `generate`. Arguments are checked at once, logits as they are
            computed.

    Example:

    >>> from keras_performer import PerformerLM
    >>> model = PerformerLM(256, max_length=16, num_layers=1, num_heads=1, hidden_dim=4)
    >>> pieces = generate_stream(model, b"Once", max_length=10, chunk_size=3, seed=0)
    >>> [len(piece) for piece in pieces]
    [1, 3, 2]
    """
    options = check_options(seed, temperature, top_k, top_p, min_p, repetition_penalty)
    work = Continuation(model, prompt, max_length, num_samples, stop_tokens, options)
    chunk_size = arguments.positive_int("chunk_size", chunk_size)
    return (work.answer(piece) for piece in work.pieces(chunk_size))


def _progress_bar(new_tokens, verbose):
    arguments.one_of("verbose", verbose, ("auto", 0, 1))
    show = new_tokens >= 1000 if verbose == "auto" else verbose
    return keras.utils.Progbar(new_tokens, verbose=int(show), unit_name="token")
