"""Errors for inputs that attention cannot take."""

from numbers import Integral

import tensorflow as tf

from keras_performer.ops.shapes import compute_dtype


def check_attention_inputs(query, key, value, visible):
    """Raises a `ValueError` unless the shapes fit together."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if len(x.shape) != 4:
            raise ValueError(
                f"{name} must have shape (batch, length, heads, head_size). Received: "
                f"{name} of shape {tuple(x.shape)}"
            )
    if not query.shape[:1].is_compatible_with(key.shape[:1]):
        raise ValueError(
            "query and key must have the same batch size. Received: query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}"
        )
    if query.shape[3] != key.shape[3]:
        raise ValueError(
            "query and key must have the same head size. Received: query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}"
        )
    if key.shape[2] != value.shape[2] or query.shape[2] % key.shape[2]:
        raise ValueError(
            "key and value must have the same number of heads, and query a multiple "
            f"of it. Received: query of shape {tuple(query.shape)}, key of shape "
            f"{tuple(key.shape)}, value of shape {tuple(value.shape)}"
        )
    if not key.shape[:2].is_compatible_with(value.shape[:2]):
        raise ValueError(
            "key and value must have the same batch size and length. Received: key of "
            f"shape {tuple(key.shape)} and value of shape {tuple(value.shape)}"
        )
    key_mask = visible.key_mask
    if key_mask is not None and not key.shape[:2].is_compatible_with(key_mask.shape):
        raise ValueError(
            "key_mask must have shape (batch, length of key). Received: key_mask of "
            f"shape {tuple(key_mask.shape)} and key of shape {tuple(key.shape)}"
        )
    if visible.global_tokens is not None:
        raise ValueError(
            "Only global_token_attention and the exact functions support global "
            "tokens: leave them out. Received: Visibility(..., global_tokens=...)"
        )
    starts = visible.starts
    if starts is not None and not all(
        x.shape[:2].is_compatible_with(starts.shape) for x in (query, key)
    ):
        raise ValueError(
            "Segments need one key for each query, and starts of shape (batch, "
            f"length). Received: starts of shape {tuple(starts.shape)}, query of shape "
            f"{tuple(query.shape)} and key of shape {tuple(key.shape)}"
        )


def check_decay(decay, query, key, *values):
    """Returns log-decays in the dtype of sums, or an error unless shapes fit."""
    if decay is None:
        return None
    decay = tf.convert_to_tensor(decay)
    if not decay.dtype.is_floating or not decay.shape.is_compatible_with(key.shape[:3]):
        raise ValueError(
            "decay must be floats of shape (batch, tokens, key-value heads), here "
            f"{tuple(key.shape[:3])}: the logarithm of each token's gate. Received: "
            f"{decay.dtype.name} of shape {tuple(decay.shape)}"
        )
    if not query.shape[:2].is_compatible_with(key.shape[:2]):
        raise ValueError(
            "decay needs one key for each query, because it adds up over tokens: leave "
            "it out of cross-attention. "
            f"Received: query of shape {tuple(query.shape)} and key of shape "
            f"{tuple(key.shape)}"
        )
    return tf.cast(decay, compute_dtype(query, key, *values))


def check_chunk_size(chunk_size):
    """Raises a `ValueError` unless `chunk_size` is a positive int."""
    if not _is_positive_int(chunk_size):
        raise ValueError(
            "chunk_size must be a positive int, the tokens in a chunk. Received: "
            f"chunk_size={chunk_size!r}"
        )


def _is_positive_int(x):
    return isinstance(x, Integral) and not isinstance(x, bool) and x > 0


def check_window(name, window, query, key):
    """Raises a `ValueError` unless a window of keys fits queries and keys."""
    if not _is_positive_int(window):
        raise ValueError(
            f"{name} must be a positive int, the keys that a query sees on each side, "
            f"including its own. Received: {name}={window!r}"
        )
    if not query.shape[:2].is_compatible_with(key.shape[:2]):
        raise ValueError(
            f"{name} needs one key for each query, because it counts tokens from the "
            "query's own token: use attention without it for cross-attention. "
            f"Received: query of shape {tuple(query.shape)} and key of "
            f"shape {tuple(key.shape)}"
        )


def check_no_window(visible):
    """Raises a `ValueError` if `visible` has a sliding window."""
    if visible.sliding_window is not None:
        raise ValueError(
            "Linear attention sees keys at any distance: use local_attention for a "
            "sliding window, or windowed_attention for a window and linear attention. "
            f"Received: Visibility(..., sliding_window={visible.sliding_window})"
        )


def check_no_segments(function, visible):
    """Raises a `ValueError` if `visible` has segments."""
    if visible.starts is not None:
        raise ValueError(
            f"{function} takes keys of one segment: use bidirectional_attention for "
            "packed sequences. Received: Visibility(..., starts=...)"
        )


def check_not_causal(function, visible):
    """Raises a `ValueError` if `visible` is causal."""
    if visible.causal:
        raise ValueError(
            f"{function} lets all queries see the same keys: use causal_attention to "
            "hide later ones. Received: key_mask=Visibility(..., causal=True)"
        )


def check_state(state, expected):
    """Raises a `ValueError` unless a state has the shapes of the `expected` one."""
    names = ("running_max", "sums")
    if not isinstance(state, (tuple, list)) or len(state) != len(names):
        raise ValueError(
            "state must be a tuple (running_max, sums), from initial_state or an "
            f"earlier call. Received: state of type {type(state).__name__}"
        )
    for name, x, like in zip(names, state, expected):
        shape = tf.TensorShape(tf.convert_to_tensor(x).shape)
        if not shape.is_compatible_with(like.shape):
            raise ValueError(
                "state must come from get_initial_state or an earlier call of this "
                f"layer, for this batch size: {name} of shape {tuple(like.shape)}. "
                f"Received: {name} of shape {tuple(shape)}"
            )
