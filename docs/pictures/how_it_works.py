"""The attention matrix, and what random features make of it."""

import numpy as np
import tensorflow as tf

from docs.pictures import style
from keras_performer import feature_maps, ops

LENGTH, HEAD_DIM = 64, 16


def main():
    query, key, value = sequences()
    exact = ops.exact_scores(query, key)[0, 0].numpy()
    pictures = [("exact", exact)]
    for num_features in (64, 1024):
        features = feature_maps.get("softmax")
        kernel = features.kernel(features.draw(num_features, HEAD_DIM, (0, 1)))
        scores = ops.attention_scores(query, key, kernel)[0, 0].numpy()
        pictures.append((f"{num_features:,} features", scores))
    mean = np.full_like(exact, 1 / LENGTH)
    pictures.append(("mean of values", mean))

    figure, axes = style.panels(len(pictures), height=2.1)
    for panel, (title, scores) in zip(axes, pictures):
        style.matrix(panel, scores, title, vmin=0, vmax=exact.max())
        error = np.linalg.norm((scores - exact) @ value)
        error /= np.linalg.norm(exact @ value)
        panel.set_xlabel("" if scores is exact else f"error {error:.2f}", fontsize=10)
    style.save(figure, __file__)


def sequences():
    """Queries and keys that turn with the position, so that the matrix has bands."""
    random = np.random.default_rng(0)
    speeds = np.array([1, 2, 3, 4, 6, 8, 11, 16])
    angles = 2 * np.pi * np.arange(LENGTH)[:, None] / LENGTH * speeds
    turning = np.concatenate([np.cos(angles), np.sin(angles)], -1)
    query, key = (
        1.2 * turning + 0.3 * random.standard_normal((LENGTH, HEAD_DIM))
        for _ in range(2)
    )
    value = random.standard_normal((LENGTH, HEAD_DIM))
    query, key = (tf.constant(x[None, :, None], tf.float32) for x in (query, key))
    return query, key, value


if __name__ == "__main__":
    main()
