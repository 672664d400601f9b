"""Sampling from a causal model, token by token."""

import random
import weakref

import keras
import numpy as np
import tensorflow as tf

from keras_performer.layers import arguments

# Tokens made by one call of the compiled loop, between updates of the progress bar.
_TOKENS_PER_CALL = 256
# The compiled functions of each model, so that generating again does not trace again.
_functions = weakref.WeakKeyDictionary()


def generate(
    model,
    prompt,
    max_length,
    temperature=1.0,
    top_k=None,
    top_p=None,
    seed=None,
    verbose="auto",
):
    """Continues sequences with tokens drawn from a causal model.

    A compiled loop carries the model's recurrent state, so that a token costs the same
    at the end of a long sequence as at its start.

    Args:
        model: a `PerformerLM` with `causal=True`.
        prompt: int array of shape `(B, P)`, at least one token for each sequence.
        max_length: int, length of the sequences that are returned, prompt included; at
            most `model.max_length + 1`, as the last token is not read again.
        temperature: float that divides the logits; 0 takes the likeliest token.
        top_k: int, draw from the k likeliest tokens only.
        top_p: float in (0, 1], draw from the likeliest tokens whose probabilities
            together reach p ("nucleus"), after `temperature` and `top_k`.
        seed: int; equal seeds give equal sequences. By default a new one each time.
        verbose: 0, 1 or "auto", whether to show a progress bar; "auto" shows one for
            1,000 tokens and more.

    Returns:
        int32 array of shape `(B, max_length)` that begins with the prompt.

    Raises:
        ValueError: for a model that is not causal, an empty prompt, or lengths and
            sampling options out of range.

    Example:

    >>> from keras_performer import PerformerLM
    >>> model = PerformerLM(7, max_length=16, num_layers=1, num_heads=1, hidden_dim=4)
    >>> generate(model, [[3, 1]], max_length=8, seed=0).shape
    (1, 8)
    """
    prompt = tf.convert_to_tensor(prompt)
    max_length = arguments.positive_int("max_length", max_length)
    top_k = arguments.positive_int("top_k", top_k, default=None)
    _check(model, prompt, max_length, temperature, top_p)
    prompt = tf.cast(prompt, tf.int32)
    seed = arguments.seed(seed)
    if seed is None:
        seed = random.randrange(2**31 - 1)
    length = prompt.shape[1]
    begin, extend = _compiled(model, temperature == 0, top_k, top_p is not None)
    new_tokens = max_length - length
    show = new_tokens >= 1000 if verbose == "auto" else bool(verbose)
    bar = keras.utils.Progbar(new_tokens, unit_name="token") if show else None
    options = (
        tf.constant(seed % (2**31 - 1), tf.int32),
        tf.constant(temperature or 1.0),
        tf.constant(top_p or 1.0),
    )
    state = model.initial_state(prompt.shape[0])
    token, state = begin(prompt, state, tf.constant(length), *options)
    sequences = [prompt.numpy(), token.numpy()]
    for start in range(length + 1, max_length, _TOKENS_PER_CALL):
        count = min(_TOKENS_PER_CALL, max_length - start)
        span = tf.constant(start), tf.constant(count)
        tokens, token, state = extend(token, state, *span, *options)
        sequences.append(tokens.numpy().T)
        if bar is not None:
            bar.update(start + count - length)
    return np.concatenate(sequences, axis=1)


def _compiled(model, greedy, top_k, nucleus):
    key = (greedy, top_k, nucleus)
    functions = _functions.setdefault(model, {})
    if key not in functions:
        # a proxy, as a function that held the model would keep it alive for ever
        functions[key] = _make_functions(weakref.proxy(model), *key)
    return functions[key]


def _make_functions(model, greedy, top_k, nucleus):
    @tf.function(reduce_retracing=True)
    def begin(tokens, state, position, seed, temperature, top_p):
        """Reads tokens `(B, T)` and draws the one after them, `(B, 1)`."""
        outputs, state = model(tokens, state=state, return_state=True)
        logits = model.next_token_logits(outputs[:, -1])
        if greedy:
            return tf.argmax(logits, -1, output_type=tf.int32)[:, tf.newaxis], state
        logits /= tf.cast(temperature, logits.dtype)
        logits = _filter(logits, top_k, tf.cast(top_p, logits.dtype), nucleus)
        token = tf.random.stateless_categorical(
            logits, 1, tf.stack([seed, position]), dtype=tf.int32
        )
        return token, state

    @tf.function(reduce_retracing=True)
    def extend(token, state, start, count, *options):
        """Draws `count` tokens, each after reading the one before it."""

        def step(i, token, state, tokens):
            token, state = begin.python_function(token, state, start + i, *options)
            return i + 1, token, state, tokens.write(i, token[:, 0])

        tokens = tf.TensorArray(tf.int32, size=count, element_shape=token.shape[:1])
        _, token, state, tokens = tf.while_loop(
            lambda i, *_: i < count, step, (0, token, state, tokens)
        )
        return tokens.stack(), token, state

    return begin, extend


def _filter(logits, top_k, top_p, nucleus):
    """Sets the logits of tokens that must not be drawn to -inf."""
    never = tf.constant(float("-inf"), logits.dtype)
    if top_k is not None:
        least = tf.math.top_k(logits, min(top_k, logits.shape[-1])).values[..., -1:]
        logits = tf.where(logits < least, never, logits)
    if nucleus:
        descending = tf.sort(logits, direction="DESCENDING")
        probabilities = tf.nn.softmax(descending)
        before = tf.cumsum(probabilities, axis=-1, exclusive=True)
        kept = tf.where(before < top_p, descending, -never)
        least = tf.reduce_min(kept, -1, keepdims=True)
        logits = tf.where(logits < least, never, logits)
    return logits


def _check(model, prompt, max_length, temperature, top_p):
    if not getattr(model, "causal", False):
        raise ValueError(
            f"generate needs a PerformerLM with causal=True. Received: model={model!r}"
        )
    if len(prompt.shape) != 2 or not prompt.shape[0] or not prompt.shape[1]:
        raise ValueError(
            "prompt must have shape (batch, length) with at least one token. Received: "
            f"prompt of shape {tuple(prompt.shape)}"
        )
    if not prompt.dtype.is_integer:
        raise ValueError(
            "prompt must be ints, the ids of tokens. Received: prompt of dtype "
            f"{prompt.dtype.name}"
        )
    if not prompt.shape[1] < max_length <= model.max_length + 1:
        raise ValueError(
            "max_length must be more than the length of the prompt and at most "
            f"model.max_length + 1 = {model.max_length + 1}. Received: "
            f"max_length={max_length}, prompt of shape {tuple(prompt.shape)}"
        )
    if not temperature >= 0:
        raise ValueError(
            "temperature must be a float of at least 0. Received: "
            f"temperature={temperature}"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(
            f"top_p must be a float in the range (0, 1]. Received: top_p={top_p}"
        )
