"""What the operations that attention is made of cost by themselves.

    python -m benchmarks.operations [--threads 2]

The arithmetic floor divides all floating-point operations by the rate of a 2048^3
product. The products of attention are smaller, and exponentials are no products: here
each is timed alone, at the shape it has for one block of 512 tokens, in a loop over 8
blocks as in the op. Their sum is a floor that the op can reach.
"""

import argparse
import time

import numpy as np
import tensorflow as tf

from benchmarks import tensorflow_programs

BLOCKS, HEADS, TOKENS, DIM, FEATURES = 8, 8, 512, 64, 256
ROUNDS = 30


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    tensorflow_programs.start(options.threads)
    print("| operation | shape | in forward, training | graph ms | XLA ms |")
    print("|---|---|---|---|---|")
    total = np.zeros((2, 2))
    for name, (step, shapes, counts) in OPERATIONS.items():
        times = [1e3 * median(step, shapes, jit) for jit in (False, True)]
        text = " x ".join(str(list(shape)) for shape in shapes)
        print(
            f"| {name} | {text} | {counts[0]}, {counts[1]} | "
            + " | ".join(f"{x:.2f}" for x in times)
            + " |",
            flush=True,
        )
        total += np.outer(counts, times)
    for label, (graph, xla) in zip(("forward", "training"), total):
        print(
            f"| sum, {label} | {BLOCKS * TOKENS} tokens | | {graph:.0f} | {xla:.0f} |"
        )


def median(step, shapes, jit):
    """Seconds of 8 blocks."""
    seed = iter(range(len(shapes)))
    inputs = [
        tf.random.stateless_normal((BLOCKS, *shape), seed=(0, next(seed)))
        for shape in shapes
    ]
    one = step(*(x[0] for x in inputs))

    @tf.function(jit_compile=jit)
    def run(*inputs):
        # the sum of the results, so that none can be left out
        return tf.while_loop(
            lambda i, total: i < BLOCKS,
            lambda i, total: (i + 1, total + step(*(x[i] for x in inputs))),
            (0, tf.zeros_like(one)),
            parallel_iterations=1,
        )[1]

    seconds = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        run(*inputs).numpy()
        seconds.append(time.perf_counter() - start)
    return np.median(seconds[1:])


FLAT = HEADS * TOKENS
# Name: the operation, the shapes of its inputs, how often one block of bidirectional
# attention with hyperbolic features needs it in a forward and in a training step.
OPERATIONS = {
    "project": (
        lambda x, w: tf.matmul(x, w),
        [(FLAT, DIM), (DIM, FEATURES // 2)],
        (2, 4),
    ),
    "project back": (
        lambda a, w: tf.matmul(a, w),
        [(FLAT, FEATURES // 2), (FEATURES // 2, DIM)],
        (0, 2),
    ),
    "exp": (
        lambda a: tf.exp(a),
        [(HEADS, TOKENS, FEATURES)],
        (2, 4),
    ),
    "sum over tokens": (
        lambda v, e: tf.matmul(v, e, transpose_a=True),
        [(HEADS, TOKENS, DIM + 1), (HEADS, TOKENS, FEATURES)],
        (1, 2),
    ),
    "sum over features": (
        lambda p, s: tf.matmul(p, s, transpose_b=True),
        [(HEADS, TOKENS, FEATURES), (HEADS, DIM + 1, FEATURES)],
        (1, 2),
    ),
    "gradient of features": (
        lambda d, s: tf.matmul(d, s),
        [(HEADS, TOKENS, DIM + 1), (HEADS, DIM + 1, FEATURES)],
        (0, 2),
    ),
}


if __name__ == "__main__":
    main()
