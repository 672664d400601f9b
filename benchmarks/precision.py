"""Measures the cost of the reduced precision of TPUs, emulated on a CPU.

    python -m benchmarks.precision [--length 2048] [--draws 3]

By default a TPU rounds both factors of a float32 matrix product to bfloat16 (8
significant bits) and adds up the products in float32. This command does the same to
products of `keras_performer.ops`, run eagerly: to none, to products with the projection
matrix, to the others, or to all. "inputs" only rounds queries, keys and values, as the
dtype policy mixed_bfloat16 does before any attention.

An error is |x - y| / |y| (Frobenius norm), the mean over samples of data and features
(seeds 0, 1, ...). x is the output, or the gradient by queries, keys or values with the
largest error. y is the same result with the same features in float64. "features" is the
error of the random features themselves: y compared with exact softmax attention ("relu"
approximates nothing). Queries and keys are N(0, std^2), values and the gradient of the
output N(0, 1); one head, 256 features.

The second table shows whether errors accumulate in one long causal sequence: in the
first 1,024 tokens, whose gradients have the longest sums, and in the last 1,024, whose
outputs have the longest sums.
"""

import contextlib
from unittest import mock

import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.tables import table
from keras_performer import feature_maps, ops
from keras_performer.ops import reference

NUM_FEATURES = 256
ROUNDED = ("none", "projection", "others", "all", "inputs")
CASES = [
    (name, causal, head_dim, std)
    for name in ("softmax", "favor+", "relu")
    for causal in (False, True)
    for head_dim in (16, 64)
    for std in (0.5, 1.0, 2.0, 3.0)
    if name != "relu" or std == 1.0  # std only scales the features of relu
]
# Longer sequences are not compared with exact attention, as its matrix is too large.
MAX_EXACT_LENGTH = 4096


def main(argv=None):
    options = runner.options(__doc__, argv, length=2048, long=65536, draws=3)
    lines = []
    for name, causal, head_dim, std in CASES:
        draws = [
            errors(seed, name, causal, head_dim, std, options.length)
            for seed in range(options.draws)
        ]
        form = "causal" if causal else "bidirectional"
        found = map(percent, np.mean(draws, axis=0))
        lines.append([name, form, head_dim, std, *found])
        print(*lines[-1], flush=True)
    header = ["feature map", "form", "head size", "std", "features", *ROUNDED]
    print("Errors of output / gradient in percent.\n", table(header, lines), sep="\n")
    print(f"\nA causal sequence of {options.long:,} tokens, head size 64, std 0.5.\n")
    lines = []
    for name in ("softmax", "favor+", "relu"):
        for word, part in (("first", slice(1024)), ("last", slice(-1024, None))):
            found = errors(0, name, True, 64, 0.5, options.long, part)[1:]
            lines.append([name, word, *map(percent, found)])
    print(table(["feature map", "tokens", *ROUNDED], lines))


def percent(errors):
    if np.isnan(errors).any():
        return "-"
    return " / ".join(f"{100 * e:.0f}" if e > 0.1 else f"{100 * e:.2g}" for e in errors)


def errors(seed, name, causal, head_dim, std, length, part=slice(None)):
    """Returns errors of output and gradient, for "features" and each of `ROUNDED`.

    Only tokens of `part` count. Errors of "features" are nan if the kernel approximates
    nothing, or the sequence is too long.
    """
    random = np.random.default_rng(seed)
    data = random.standard_normal((4, 1, length, 1, head_dim))
    data[:2] *= std
    feature_map = feature_maps.get(name)
    kernel = feature_map.kernel(feature_map.draw(NUM_FEATURES, head_dim, (seed, 1)))

    def attend(query, key, value):
        if causal:
            return ops.causal_attention(query, key, value, kernel)[0]
        return ops.bidirectional_attention(query, key, value, kernel)

    def exact(query, key, value):
        return reference.local_attention(
            query, key, value, query.shape[1], causal=causal
        )

    features = output_and_gradients(attend, data, tf.float64, part)
    found = [(np.nan, np.nan)]
    if name != "relu" and length <= MAX_EXACT_LENGTH:
        truth = output_and_gradients(exact, data, tf.float64, part)
        found = [difference(features, truth)]
    for rounded in ROUNDED:
        if rounded == "inputs":
            values = output_and_gradients(attend, bfloat16(data), tf.float64, part)
        else:
            with rounded_products(rounded):
                values = output_and_gradients(attend, data, tf.float32, part)
        found.append(difference(values, features))
    return found


def output_and_gradients(attend, data, dtype, part):
    """Returns output and gradients by queries, keys and values, of tokens in `part`."""
    *inputs, doutput = (tf.constant(x, dtype) for x in data)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = attend(*inputs)
    gradients = tape.gradient(output, inputs, output_gradients=doutput)
    return [x[:, part].numpy().astype("float64") for x in (output, *gradients)]


def difference(values, truth):
    """Returns the relative errors of the output and of the worst gradient."""
    output, *gradients = (
        np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(values, truth)
    )
    return output, max(gradients)


@contextlib.contextmanager
def rounded_products(which):
    """Rounds both factors of matrix products to bfloat16, outside of graphs.

    Only products with the projection matrix, also in the gradient, are not batched.
    """
    exactly = tf.matmul

    def matmul(a, b, **options):
        # inside a graph, a compiler may remove the two casts
        assert tf.executing_eagerly()
        kind = "projection" if len(b.shape) == 2 else "others"
        if which in (kind, "all"):
            a, b = bfloat16(a), bfloat16(b)
        return exactly(a, b, **options)

    with mock.patch.object(tf, "matmul", matmul):
        yield


def bfloat16(x):
    """Rounds x to bfloat16; returns it in its own dtype."""
    x = tf.convert_to_tensor(x)
    return tf.cast(tf.cast(x, tf.bfloat16), x.dtype)


if __name__ == "__main__":
    main()
