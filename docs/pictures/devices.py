"""Draws why sums over the sequence stay in float32: sums in bfloat16 stop growing."""

import numpy as np
import tensorflow as tf

from docs.pictures import style
from keras_performer import feature_maps, ops

LENGTH, HEAD_DIM, NUM_FEATURES, WINDOW = 8192, 16, 64, 128


def draw():
    random = np.random.default_rng(0)
    data = random.standard_normal((3, 1, LENGTH, 1, HEAD_DIM))
    data[2] += 1.0  # a nonzero mean, like values of a trained model
    features = feature_maps.get("relu")
    matrix = features.draw(NUM_FEATURES, HEAD_DIM, (0, 1))
    kernel = features.kernel(matrix)
    truth, _ = ops.causal_attention(*tf.constant(data, tf.float64), kernel)
    in_bfloat16 = tf.cast(data, tf.bfloat16)
    ours, _ = ops.causal_attention(*in_bfloat16, kernel)
    lines = [
        ("sums added up in bfloat16", naive(in_bfloat16, matrix), style.EXACT),
        ("this package: bfloat16 in and out", ours, style.OURS),
    ]
    figure, (axes,) = style.panels(height=3.3)
    positions = WINDOW * np.arange(1, LENGTH // WINDOW + 1)
    for label, output, colour in lines:
        axes.plot(positions, errors(output, truth), color=colour, label=label)
    style.tidy(axes, None, "position in a causal sequence", "relative error")
    style.lengths(axes, [128, 256, 512, 1024, 2048, 4096, 8192])
    axes.set_yscale("log")
    axes.set_yticks([0.001, 0.01, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.set_ylim(0.001, 2)
    axes.legend(frameon=False, fontsize=10)
    style.headline(figure, "Sums in bfloat16 drift off, float32 sums do not")
    return figure


def naive(data, matrix):
    """Causal attention with the features of `"relu"`, every sum in bfloat16."""
    query, key, value = data[:, 0, :, 0]
    matrix = tf.cast(matrix, tf.bfloat16) * HEAD_DIM**-0.25
    query, key = (tf.nn.relu(x @ tf.transpose(matrix)) + 1e-3 for x in (query, key))
    sums = tf.cumsum(key[:, :, tf.newaxis] * value[:, tf.newaxis], axis=0)
    normalizer = tf.cumsum(key, axis=0)
    weighted = tf.einsum("tm,tmv->tv", query, sums)
    total = tf.einsum("tm,tm->t", query, normalizer)
    return (weighted / total[:, tf.newaxis])[tf.newaxis, :, tf.newaxis]


def errors(output, truth):
    """Relative error in each window of positions."""
    output, truth = (
        tf.reshape(tf.cast(x, tf.float64), (-1, WINDOW * HEAD_DIM))
        for x in (output, truth)
    )
    return (tf.norm(output - truth, axis=1) / tf.norm(truth, axis=1)).numpy()
