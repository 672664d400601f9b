"""Measures the cost of the reduced precision of TPUs, emulated on a CPU.

    python -m benchmarks.precision [--length 2048] [--draws 3]

By default a TPU rounds both factors of a float32 matrix product to bfloat16 (8
significant bits) and adds up the products in float32. Here the same is done to the
products of `keras_performer.ops`, run eagerly: to none, to those with the projection
matrix, to the others, to all. "inputs" rounds queries, keys and values instead, as the
dtype policy mixed_bfloat16 does before any attention, and nothing else.

An error is |x - y| / |y| (Frobenius norm), the mean over draws of the data and of the
features (seeds 0, 1, ...): y is the same attention with the same features in float64,
and x its output or its gradient, the worst of the three by queries, keys and values.
"features" is what the random features themselves cost: the error of y against exact
softmax attention ("relu" approximates nothing). Queries and keys are N(0, std^2),
values and the gradient of the output N(0, 1); one head, 256 features.

The second table is one long causal sequence, to see whether anything adds up: errors of
the first 1,024 tokens, which have the longest sums in their gradients, and of the last
1,024, which have the longest sums in their outputs.
"""

import argparse
import contextlib
from unittest import mock

import numpy as np
import tensorflow as tf

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
    if name != "relu" or std == 1.0  # to relu a std is only a factor of the features
]
# Longer sequences are not compared with exact attention, whose matrix is large.
MAX_EXACT_LENGTH = 4096


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--long", type=int, default=65536)
    parser.add_argument("--draws", type=int, default=3)
    options = parser.parse_args(argv)
    print("Errors of output / gradient in percent.\n")
    print_row("feature map", "form", "head size", "std", "features", *ROUNDED)
    print("|---" * (5 + len(ROUNDED)) + "|")
    for name, causal, head_dim, std in CASES:
        draws = [
            errors(seed, name, causal, head_dim, std, options.length)
            for seed in range(options.draws)
        ]
        form = "causal" if causal else "bidirectional"
        print_row(name, form, head_dim, std, *map(percent, np.mean(draws, axis=0)))
    print(f"\nA causal sequence of {options.long:,} tokens, head size 64, std 0.5.\n")
    print_row("feature map", "tokens", *ROUNDED)
    print("|---" * (2 + len(ROUNDED)) + "|")
    for name in ("softmax", "favor+", "relu"):
        for part in (slice(None, 1024), slice(-1024, None)):
            found = errors(0, name, True, 64, 0.5, options.long, part)[1:]
            print_row(name, "last" if part.start else "first", *map(percent, found))


def print_row(*cells):
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def percent(errors):
    if np.isnan(errors).any():
        return "-"
    return " / ".join(f"{100 * e:.0f}" if e > 0.1 else f"{100 * e:.2g}" for e in errors)


def errors(seed, name, causal, head_dim, std, length, part=slice(None)):
    """Errors of output and gradient, by the features and by what is rounded.

    Args:
        seed: int, of the data and of the features.
        name: str, the feature map.
        causal: bool.
        head_dim: int H, also the size of the values.
        std: float, of queries and keys.
        length: int, how many tokens.
        part: slice, the tokens whose errors are returned.

    Returns:
        List of pairs of floats, for "features" (nan where nothing is approximated or
        the sequence is too long to tell) and each of `ROUNDED`.
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
        return reference.exact_softmax_attention(query, key, value, causal=causal)

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
    """The output, and the gradients of queries, keys and values, of some tokens."""
    *inputs, doutput = (tf.constant(x, dtype) for x in data)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = attend(*inputs)
    gradients = tape.gradient(output, inputs, output_gradients=doutput)
    return [x[:, part].numpy().astype("float64") for x in (output, *gradients)]


def difference(values, truth):
    """Relative error of the output, and of the worst gradient."""
    output, *gradients = (
        np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(values, truth)
    )
    return output, max(gradients)


@contextlib.contextmanager
def rounded_products(which):
    """Rounds both factors of matrix products to bfloat16, outside of graphs.

    Args:
        which: "all", "none", "projection" (those with the projection matrix, also in
            the gradient: the only ones that are not batched) or "others".
    """
    exactly = tf.matmul

    def matmul(a, b, **options):
        # Inside a graph, a compiler may take the two casts for nothing.
        assert tf.executing_eagerly()
        kind = "projection" if len(b.shape) == 2 else "others"
        if which in (kind, "all"):
            a, b = bfloat16(a), bfloat16(b)
        return exactly(a, b, **options)

    with mock.patch.object(tf, "matmul", matmul):
        yield


def bfloat16(x):
    """The nearest bfloat16 numbers, in the dtype of x."""
    x = tf.convert_to_tensor(x)
    return tf.cast(tf.cast(x, tf.bfloat16), x.dtype)


if __name__ == "__main__":
    main()
