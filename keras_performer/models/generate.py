"""Sampling from a causal model, token by token."""

import functools
import random
import typing
import weakref

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_performer.layers import arguments
from keras_performer.layers.keras_privates import all_layers
from keras_performer.models.performer_lm import PerformerLM

# Tokens made by one call of the compiled loop, between updates of the progress bar.
_TOKENS_PER_CALL = 256
# What is compiled for each model, so that generating again does not trace again.
_functions: weakref.WeakKeyDictionary[PerformerLM, dict] = weakref.WeakKeyDictionary()
# The smallest float32 that hardware does not take for 0, and the largest.
_SMALLEST = float(np.finfo("float32").tiny)
_LARGEST = float(np.finfo("float32").max)


def generate(
    model: PerformerLM,
    prompt: npt.ArrayLike,
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    verbose: typing.Literal["auto", 0, 1] = "auto",
) -> npt.NDArray[np.int32]:
    """Continues sequences with tokens drawn from a causal model.

    A compiled loop carries the model's recurrent state, so that a token costs the same
    at the end of a long sequence as at its start.

    Args:
        model: a `PerformerLM` with `causal=True`, of whose attention a state is all
            that later tokens need: not `attention="exact"`.
        prompt: int array of shape `(B, P)`, at least one token for each sequence;
            ids below `model.vocabulary_size`.
        max_length: int, length of the sequences that are returned, prompt included; at
            most `model.max_length + 1`, as the last token is not read again.
        temperature: float that divides the logits; 0 takes the likeliest token.
        top_k: int, draw from the k likeliest tokens only; of equally likely ones
            lower ids come first.
        top_p: float in (0, 1], draw from the likeliest tokens whose probabilities
            together reach p ("nucleus"), after `temperature` and `top_k`.
        seed: int; equal seeds give equal sequences. By default a new one each time.
        verbose: 0, 1 or "auto", whether to show a progress bar; "auto" shows one for
            1,000 tokens and more.

    Returns:
        int32 array of shape `(B, max_length)` that begins with the prompt.

    Raises:
        ValueError: for a model that is not causal, has no state or whose logits are not
            finite, a prompt that is empty or holds other ids, or lengths and sampling
            options out of range.

    Example:

    >>> from keras_performer import PerformerLM
    >>> model = PerformerLM(7, max_length=16, num_layers=1, num_heads=1, hidden_dim=4)
    >>> generate(model, [[3, 1]], max_length=8, seed=0).shape
    (1, 8)
    """
    _check_model(model)
    ids = _checked_prompt(model, prompt)
    length = ids.shape[1]
    max_length = _checked_length(model, ids, max_length)
    temperature = _checked_temperature(temperature)
    top_k = arguments.positive_int("top_k", top_k, default=None)
    nucleus = top_p is not None
    top_p = _checked_top_p(top_p) if nucleus else 1.0
    seed = arguments.seed(seed)
    if seed is None:
        seed = random.randrange(2**31 - 1)
    begin, extend = _compiled(model, temperature == 0, top_k, nucleus)
    bar = _progress_bar(max_length - length, verbose)
    options = (
        tf.constant(seed % (2**31 - 1), tf.int32),
        tf.constant(temperature, tf.float32),
        tf.constant(top_p, tf.float32),
    )
    state = model.initial_state(ids.shape[0])
    token, state, finite = begin(ids, state, tf.constant(length), *options)
    _check_finite(model, finite)
    sequences = [ids.numpy(), token.numpy()]
    for start in range(length + 1, max_length, _TOKENS_PER_CALL):
        count = min(_TOKENS_PER_CALL, max_length - start)
        span = tf.constant(start), tf.constant(count)
        tokens, token, state, finite = extend(token, state, *span, *options)
        _check_finite(model, finite)
        sequences.append(tokens.numpy().T)
        if bar is not None:
            bar.update(start + count - length)
    return np.concatenate(sequences, axis=1)


def _compiled(model, *options):
    """The functions `_begin` and `_extend` for this model and these options."""
    # LoRA and quantization give a model other weights, or other dtypes
    weights = model.weights
    made_from = (
        [id(weight) for weight in weights],
        [layer.dtype_policy.name for layer in all_layers(model)],
    )
    cached = _functions.get(model)
    if cached is None or cached["made_from"] != made_from:
        # with the weights themselves, so that no later weight gets the id of one
        cached = {"made_from": made_from, "weights": weights, "functions": {}}
        _functions[model] = cached
    functions = cached["functions"]
    if options not in functions:
        # a proxy, as a function that held the model would keep it alive for ever;
        # partials, as TensorFlow takes closures of one function for one that it
        # compiles again and again, and warns
        functions[options] = tuple(
            tf.function(
                functools.partial(function, weakref.proxy(model), *options),
                reduce_retracing=True,
            )
            for function in (_begin, _extend)
        )
    return functions[options]


def _begin(
    model, greedy, top_k, nucleus, tokens, state, position, seed, temperature, top_p
):
    """Reads tokens `(B, T)` and draws the one after them, `(B, 1)`.

    Also returns the state, and whether tokens could be drawn from the logits.
    """
    outputs, state = model(tokens, state=state, return_state=True)
    logits = model.next_token_logits(outputs[:, -1])
    if logits.dtype.size < 4:  # too coarse for small temperatures
        logits = tf.cast(logits, tf.float32)
    # relative to the largest, which no temperature then makes infinite
    relative = logits - tf.reduce_max(logits, -1, keepdims=True)
    # NaN also where that is infinite; -inf elsewhere is a token never to be drawn
    invalid = tf.math.is_nan(relative)
    finite = ~tf.reduce_any(invalid)
    if greedy:
        token = tf.argmax(logits, -1, output_type=tf.int32)[:, tf.newaxis]
        return token, state, finite
    # numbers, as the model must be able to read what is drawn here
    logits = tf.where(invalid, tf.zeros_like(logits), relative)
    logits /= tf.cast(temperature, logits.dtype)
    seeds = tf.stack([seed, position])
    if top_k is None and not nucleus:
        token = tf.random.stateless_categorical(logits, 1, seeds, dtype=tf.int32)
        return token, state, finite
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    logits, ids = tf.math.top_k(logits, count)  # in descending order
    if nucleus:
        before = tf.cumsum(tf.nn.softmax(logits), axis=-1, exclusive=True)
        never = tf.constant(float("-inf"), logits.dtype)
        logits = tf.where(before < tf.cast(top_p, logits.dtype), logits, never)
    rank = tf.random.stateless_categorical(logits, 1, seeds, dtype=tf.int32)
    return tf.gather(ids, rank, batch_dims=1), state, finite


def _extend(model, greedy, top_k, nucleus, token, state, start, count, *options):
    """Draws `count` tokens, each after reading the one before it."""

    def step(i, token, state, all_finite, tokens):
        token, state, finite = _begin(
            model, greedy, top_k, nucleus, token, state, start + i, *options
        )
        tokens = tokens.write(i, token[:, 0])
        return i + 1, token, state, all_finite & finite, tokens

    tokens = tf.TensorArray(tf.int32, size=count, element_shape=token.shape[:1])
    _, token, state, finite, tokens = tf.while_loop(
        lambda i, *_: i < count, step, (0, token, state, True, tokens)
    )
    return tokens.stack(), token, state, finite


def _progress_bar(new_tokens, verbose):
    if verbose not in ("auto", 0, 1):
        raise ValueError(
            f'verbose must be "auto", 0 or 1. Received: verbose={verbose!r}'
        )
    show = new_tokens >= 1000 if verbose == "auto" else verbose
    return keras.utils.Progbar(new_tokens, unit_name="token") if show else None


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
                "generate needs an attention with a state, such as "
                'attention="performer": others see a sequence as a whole. Received: '
                f"model={model.name!r} with {type(block.attention).__name__}"
            )


def _checked_prompt(model, prompt):
    try:
        prompt = np.asarray(prompt)
    except ValueError as error:  # of NumPy, which says nothing of prompts
        raise ValueError(
            "prompt must have shape (batch, length), rows of one length: generate each "
            f"length by itself. Received: prompt={prompt!r}"
        ) from error
    if prompt.ndim != 2 or not prompt.size:
        raise ValueError(
            "prompt must have shape (batch, length) with at least one token. Received: "
            f"prompt of shape {prompt.shape}"
        )
    if not np.issubdtype(prompt.dtype, np.integer):
        raise ValueError(
            "prompt must be ints, the ids of tokens. Received: prompt of dtype "
            f"{prompt.dtype.name}"
        )
    first, last = _allowed_ids(model)
    wrong = (prompt < first) | (prompt > last)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"prompt must hold ids of tokens, ints from {first} to {last}. Received: "
            f"prompt[{row}, {column}] = {prompt[row, column]}"
        )
    return tf.constant(prompt, tf.int32)


def _allowed_ids(model):
    """The smallest and the largest int that the model may read."""
    if isinstance(model.embedding, keras.layers.Embedding):
        return 0, model.embedding.input_dim - 1
    return tf.int32.min, tf.int32.max


def _checked_length(model, prompt, max_length):
    max_length = arguments.positive_int("max_length", max_length)
    if not prompt.shape[1] < max_length <= model.max_length + 1:
        raise ValueError(
            "max_length must be more than the length of the prompt and at most "
            f"model.max_length + 1 = {model.max_length + 1}. Received: "
            f"max_length={max_length}, prompt of shape {tuple(prompt.shape)}"
        )
    return max_length


def _checked_temperature(temperature):
    value = _as_float(temperature)
    if value is None or not (value == 0 or _SMALLEST <= value <= _LARGEST):
        raise ValueError(
            "temperature must be 0, for the likeliest token, or a positive float that "
            f"float32 can hold, {_SMALLEST:.2g} to {_LARGEST:.2g}. Received: "
            f"temperature={temperature!r}"
        )
    return value


def _checked_top_p(top_p):
    value = _as_float(top_p)
    if value is None or not _SMALLEST <= value <= 1:
        raise ValueError(
            "top_p must be None or a float in the range (0, 1] that float32 can hold, "
            f"at least {_SMALLEST:.2g}. Received: top_p={top_p!r}"
        )
    return value


def _as_float(value):
    """A number or scalar tensor as a float, other things as `None`."""
    try:
        return None if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
