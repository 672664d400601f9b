"""Error of the attention output against exact softmax, by norm of queries and keys.

    python -m benchmarks.accuracy [--length 4096] [--draws 15]

Queries and keys are N(0, std^2), values N(0, 1), as in section 4.2 of the paper; the
error is |output - exact| / |exact| (Frobenius), the mean over data and features drawn
anew each time (seeds 0, 1, ...). The layer's mathematics runs in float32, the exact
one in float64. Predicting the mean of all values is the line to beat.
"""

import argparse

import numpy as np
import tensorflow as tf

from keras_performer import feature_maps, ops

NAMES = ("softmax", "favor+", "relu")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--draws", type=int, default=15)
    options = parser.parse_args()
    print("| head size | std | features | mean of values | " + " | ".join(NAMES) + " |")
    print("|---" * (4 + len(NAMES)) + "|")
    for head_dim, std, features in [
        (16, 0.5, 64),
        (16, 0.5, 256),
        (16, 0.5, 1024),
        (64, 0.5, 256),
        (16, 1.0, 256),
        (64, 1.0, 256),
    ]:
        draws = [
            errors(seed, options.length, head_dim, std, features)
            for seed in range(options.draws)
        ]
        means = " | ".join(f"{error:.3f}" for error in np.mean(draws, axis=0))
        print(f"| {head_dim} | {std} | {features} | {means} |", flush=True)


def errors(seed, length, head_dim, std, num_features):
    """Relative error of the mean of the values, then of each feature map."""
    random = np.random.default_rng(seed)
    query, key, value = random.standard_normal((3, length, head_dim))
    query, key = std * query, std * key
    scores = query @ key.T / head_dim**0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = weights @ value / weights.sum(-1, keepdims=True)
    outputs = [np.broadcast_to(value.mean(0), exact.shape)]
    for name in NAMES:
        feature_map = feature_maps.get(name)
        kernel = feature_map.kernel(feature_map.draw(num_features, head_dim, (seed, 1)))
        q, k, v = (
            tf.constant(x[None, :, None], tf.float32) for x in (query, key, value)
        )
        output = ops.bidirectional_attention(q, k, v, kernel)
        outputs.append(output[0, :, 0].numpy().astype("float64"))
    return [np.linalg.norm(o - exact) / np.linalg.norm(exact) for o in outputs]


if __name__ == "__main__":
    main()
