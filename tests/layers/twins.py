"""What tests of attention layers share that have a twin in NumPy.

A twin is a function of a dict of weights, named as in `weights_of`, and of inputs and
masks; it returns the layer's output from a paper's equations, in float64 and without a
thought for speed.
"""

import numpy as np
import tensorflow as tf

from tests.layers.inputs import normal


def weights_of(layer):
    """The weights of a layer that train, in float64, by their names in it."""
    return {
        weight.path.split("/", 1)[1]: np.asarray(weight, "float64")
        for weight in layer.trainable_weights
    }


def randomize(layer, std=0.5):
    """Gives all weights of a built layer that train values that count."""
    for index, weight in enumerate(layer.trainable_weights):
        weight.assign(normal(weight.shape, 100 + index, std))


def heads(weights, name, x):
    """What a dense layer makes of `(B, length, dim)`: `(B, length, heads, size)`."""
    made = np.einsum("btd,dnh->btnh", x, weights[f"{name}/kernel"])
    return made + weights.get(f"{name}/bias", 0)


def written(weights, attended):
    """The output of attended values `(B, T, N, V)`."""
    made = np.einsum("btnv,nvd->btd", attended, weights["attention_output/kernel"])
    return made + weights.get("attention_output/bias", 0)


def softmax(logits, seen=True):
    """Over the last axis, of what is seen; 0 where nothing is."""
    seen = np.broadcast_to(seen, logits.shape)
    weights = np.exp(logits - logits.max(-1, keepdims=True, initial=-1e30, where=seen))
    weights = np.where(seen, weights, 0)
    total = weights.sum(-1, keepdims=True)
    return np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))


def assert_is_twin(layer, twin, inputs, tolerance=1e-9, **call):
    """Compares outputs, and gradients with differences of the twin.

    Args:
        layer: a built layer of dtype float64.
        twin: a twin; it gets `call`, too.
        inputs: list of arrays `(B, length, dim)`.
        tolerance: float, the largest relative error of outputs.
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
    gradients = tape.gradient(loss, [*tensors, *values])
    np.testing.assert_allclose(
        output, expected, rtol=0, atol=tolerance * np.abs(expected).max()
    )
    points = [*range(len(inputs)), *weights]
    for point, gradient in zip(points, gradients, strict=True):
        assert gradient is not None, point
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
