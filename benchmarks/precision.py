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
    if name != "relu" or std == 1.0  # to relu a std is only a factor of the features
]
# Longer sequences are not compared with exact attention, whose matrix is large.
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
    """Pairs of errors of output and gradient, for "features" and each of `ROUNDED`.

    They are of the tokens of `part`; those of "features" are nan where nothing is
    approximated or the sequence is too long to tell.
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

    Those with the projection matrix, also in the gradient, are the only ones that are
    not batched.
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
