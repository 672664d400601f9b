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

    >>> model = PerformerLM(7, max_length=16, num_layers=1, num_heads=1, hidden_dim=4)
    >>> generate(model, [[3, 1]], max_length=8, seed=0).shape
    (1, 8)
    """
    prompt = tf.cast(tf.convert_to_tensor(prompt), tf.int32)
    _check(model, prompt, max_length, temperature, top_k, top_p)
    if seed is None:
        seed = random.randrange(2**31 - 1)
    length = prompt.shape[1]
    read, extend = _compiled(model, temperature == 0, top_k, top_p is not None)
    new_tokens = max_length - length
    show = new_tokens >= 1000 if verbose == "auto" else bool(verbose)
    bar = keras.utils.Progbar(new_tokens, unit_name="token") if show else None
    logits, state = read(prompt, model.initial_state(prompt.shape[0]))
    sequences = [prompt.numpy()]
    for start in range(length, max_length, _TOKENS_PER_CALL):
        count = min(_TOKENS_PER_CALL, max_length - start)
        tokens, logits, state = extend(
            logits,
            state,
            tf.constant(count),
            tf.constant([seed % (2**31 - 1), start], tf.int32),
            tf.constant(temperature or 1.0, logits.dtype),
            tf.constant(top_p or 1.0, logits.dtype),
        )
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
    def next_logits(tokens, state):
        outputs, state = model(tokens, state=state, return_state=True)
        return model.next_token_logits(outputs[:, -1]), state

    read = tf.function(next_logits, reduce_retracing=True)

    @tf.function(reduce_retracing=True)
    def extend(logits, state, count, seed, temperature, top_p):
        def step(i, logits, state, tokens):
            if greedy:
                token = tf.argmax(logits, -1, output_type=tf.int32)[:, tf.newaxis]
            else:
                filtered = _filter(logits / temperature, top_k, top_p, nucleus)
                token = tf.random.stateless_categorical(
                    filtered, 1, seed + [0, i], dtype=tf.int32
                )
            logits, state = next_logits(token, state)
            return i + 1, logits, state, tokens.write(i, token[:, 0])

        tokens = tf.TensorArray(tf.int32, size=count, element_shape=logits.shape[:1])
        _, logits, state, tokens = tf.while_loop(
            lambda i, *_: i < count, step, (0, logits, state, tokens)
        )
        return tokens.stack(), logits, state

    return read, extend


def _filter(logits, top_k, top_p, nucleus):
    """Sets the logits of tokens that must not be drawn to -inf."""
    if top_k is not None:
        least = tf.math.top_k(logits, min(top_k, logits.shape[-1])).values[..., -1:]
        logits = tf.where(logits < least, float("-inf"), logits)
    if nucleus:
        descending = tf.sort(logits, direction="DESCENDING")
        probabilities = tf.nn.softmax(descending)
        before = tf.cumsum(probabilities, axis=-1, exclusive=True)
        kept = tf.where(before < top_p, descending, float("inf"))
        logits = tf.where(
            logits < tf.reduce_min(kept, -1, keepdims=True), float("-inf"), logits
        )
    return logits


def _check(model, prompt, max_length, temperature, top_k, top_p):
    if not model.causal:
        raise ValueError(
            "generate needs a causal model: make it with causal=True. Received: "
            f"model={model.name!r} with causal=False"
        )
    if len(prompt.shape) != 2 or not prompt.shape[0] or not prompt.shape[1]:
        raise ValueError(
            "prompt must have shape (batch, length) with at least one token. Received: "
            f"prompt of shape {tuple(prompt.shape)}"
        )
    arguments.positive_int("max_length", max_length)
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
    arguments.positive_int("top_k", top_k, default=None)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(
            f"top_p must be a float in the range (0, 1]. Received: top_p={top_p}"
        )
