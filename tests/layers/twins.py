"""Helpers for tests of attention layers with a twin in NumPy.

A twin is a function of a dict of weights, named as in `weights_of`, and of inputs and
masks. It computes the layer's output by the equations of a paper, in float64, and may
be slow. With `scores=True` it returns the matrix of weights. The twin of attention
takes the matrix from `tests.ops.reference`, and computes in NumPy what layers do around
it.
"""

import numpy as np
import tensorflow as tf

from tests.layers.inputs import normal
from tests.ops import reference


def weights_of(layer):
    """Returns the trainable weights of a layer in float64, by their names in it."""
    return {
        weight.path.split("/", 1)[1]: np.asarray(weight, "float64")
        for weight in layer.trainable_weights
    }


def randomize(layer, std=0.5):
    """Sets all trainable weights of a built layer to random values."""
    for index, weight in enumerate(layer.trainable_weights):
        weight.assign(normal(weight.shape, 100 + index, std))


def heads(weights, name, x):
    """Applies a dense layer: `(B, length, dim)` to `(B, length, heads, size)`."""
    made = np.einsum("btd,dnh->btnh", x, weights[f"{name}/kernel"])
    return made + weights.get(f"{name}/bias", 0)


def written(weights, attended):
    """Applies the output layer to attended values `(B, T, N, V)`."""
    made = np.einsum("btnv,nvd->btd", attended, weights["attention_output/kernel"])
    return made + weights.get("attention_output/bias", 0)


def softmax(logits, seen=True):
    """Computes softmax over visible entries of the last axis; 0 if none is visible."""
    seen = np.broadcast_to(seen, logits.shape)
    peak = logits.max(-1, keepdims=True, initial=-1e30, where=seen)
    weights = np.exp(np.where(seen, logits - peak, -np.inf))
    total = weights.sum(-1, keepdims=True)
    return np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))


def assert_is_twin(layer, twin, inputs, tolerance=1e-9, scores=False, **call):
    """Compares outputs, and gradients with finite differences of the twin.

    Args:
        layer: a built layer of dtype float64.
        twin: the twin of the layer; also gets `call`.
        inputs: list of arrays `(B, length, dim)`.
        tolerance: float, largest relative error of outputs.
        scores: bool, also compares attention scores.
        **call: further arguments of the call.
    """
    inputs = [np.asarray(x, "float64") for x in inputs]
    weights, expected = weights_of(layer), twin(weights_of(layer), *inputs, **call)
    tensors = [tf.constant(x) for x in inputs]
    values = [weight.value for weight in layer.trainable_weights]
    upstream = normal(expected.shape, 9, dtype="float64")
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        output = layer(*tensors, **call)
        loss = tf.reduce_sum(output * upstream)
    gradients = tape.gradient(loss, [*tensors, *values], unconnected_gradients="zero")
    np.testing.assert_allclose(
        output, expected, rtol=0, atol=tolerance * np.abs(expected).max()
    )
    if scores:
        _, matrix = layer(*tensors, return_attention_scores=True, **call)
        right = twin(weights, *inputs, scores=True, **call)
        np.testing.assert_allclose(matrix, right, rtol=0, atol=tolerance)
    points = [*range(len(inputs)), *weights]
    for point, gradient in zip(points, gradients, strict=True):
        gradient = np.asarray(tf.convert_to_tensor(gradient))
        for seed in (1, 2):
            direction = normal(gradient.shape, seed, dtype="float64")
            losses = []
            for step in (1e-6, -1e-6):
                moved_inputs, moved = list(inputs), dict(weights)
                place = moved_inputs if isinstance(point, int) else moved
                place[point] = place[point] + step * direction
                losses.append((twin(moved, *moved_inputs, **call) * upstream).sum())
            slope = (losses[0] - losses[1]) / 2e-6
            size = np.linalg.norm(gradient) * np.linalg.norm(direction)
            wrong = abs(slope - (gradient * direction).sum())
            assert wrong < 1e-6 * (size + 1), (point, slope, size)


# -- The twin of attention to all visible keys, or to visible keys in a window.


def attention(layer):
    """Returns the twin of a built layer.

    Args:
        layer: `ExactAttention`, `LocalAttention`, `LinearTransformerAttention` or
            `PerformerAttention`, with any of their options.
    """

    def twin(
        weights,
        query,
        value=None,
        key=None,
        key_mask=None,
        use_causal_mask=False,
        segment_ids=None,
        positions=None,
        scores=False,
    ):
        value = query if value is None else value
        key = value if key is None else key
        q, k, v = (
            heads(weights, name, x)
            for name, x in (("query", query), ("key", key), ("value", value))
        )
        size = q.shape[3]
        if layer.qk_norm:  # q . k / sqrt(H) is the scale times the cosine
            each = np.sqrt(np.sqrt(size) * np.exp(weights["query_key_norm/log_scale"]))
            q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
            q, k = (
                x * np.repeat(each, x.shape[2] // len(each))[:, None] for x in (q, k)
            )
        if layer.rotary is not None:
            if positions is None:
                positions = np.arange(q.shape[1])[None]
            q, k = (rotated(x, positions, layer.rotary) for x in (q, k))
        has_features = hasattr(layer, "feature_kernel")
        # without features, all visible weights are in the window of exact ones
        window = "exact_window" if has_features else "sliding_window"
        options = dict(
            kernel=layer.feature_kernel() if has_features else None,
            key_mask=key_mask,
            causal=layer.causal or use_causal_mask,
            exact_window=getattr(layer, window, None if has_features else 10**6),
        )
        if "far_gain/log_gain" in weights:
            options["log_gain"] = 10 * weights["far_gain/log_gain"]
        if segment_ids is not None:
            starts = np.diff(segment_ids, axis=1, prepend=0) != 0
            options["starts"] = tf.constant(starts)
        if getattr(layer, "forget_gate", False):
            gate = query @ weights["forget_gate/kernel"] + weights["forget_gate/bias"]
            decay = -np.log1p(np.exp(-gate))
            if key_mask is not None:
                decay = np.where(np.asarray(key_mask)[..., None], decay, 0.0)
            options["decay"] = tf.constant(decay)
        q, k, v = map(tf.constant, (q, k, v))
        if scores:
            return reference.attention_matrix(q, k, **options).numpy()
        return written(weights, reference.attention(q, k, v, **options).numpy())

    return twin


def numbers(segment_ids):
    """Numbers the segments of tokens; an id that repeats later is another segment."""
    return np.cumsum(np.diff(segment_ids, axis=1, prepend=0) != 0, axis=1)


def rotated(x, positions, rotary):
    """Rotates heads `(B, T, N, H)` by RoFormer's equation 15, with halves paired."""
    places = positions[..., None]
    if rotary is not True:
        rows = positions // np.prod(rotary[1:])
        places = np.stack([rows, *np.unravel_index(positions, rotary)[1:]], -1)
    parts, axes = np.split(x, places.shape[-1], axis=-1), range(places.shape[-1])
    made = []
    for part, axis in zip(parts, axes):
        half = part.shape[-1] // 2
        angles = places[..., axis, None, None] * 10000.0 ** (-np.arange(half) / half)
        cos, sin, a, b = (
            np.cos(angles),
            np.sin(angles),
            part[..., :half],
            part[..., half:],
        )
        made += [cos * a - sin * b, sin * a + cos * b]
    return np.concatenate(made, -1)
