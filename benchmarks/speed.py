"""Time of one attention layer against Keras' exact one, forward and backward.

    python -m benchmarks.speed [--lengths 1024 4096 16384] [--threads 2] [--rounds 5]

Both layers run in graph mode, as in a plain Keras model on a CPU, and take turns.
"""

import argparse
import platform
import time

import keras
import numpy as np
import tensorflow as tf

import keras_performer

NUM_HEADS, KEY_DIM, WIDTH = 8, 64, 512
# the (L, L) matrices of the exact layer need 12 GB at 16,384 tokens and more
LONGEST_EXACT = 8192


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    keras.utils.set_random_seed(0)
    print(
        f"{platform.machine()}, {options.threads} threads, TensorFlow "
        f"{tf.__version__}, Keras {keras.__version__}; float32, batch 1, "
        f"width {WIDTH}, {NUM_HEADS} heads of {KEY_DIM}, 256 features; median of "
        f"{options.rounds} rounds"
    )
    print("| tokens | form | this layer | exact layer | exact / this |")
    print("|---|---|---|---|---|")
    for length in options.lengths:
        for causal in (False, True):
            print(row(length, causal, options.rounds), flush=True)


def row(length, causal, rounds):
    steps = [
        step(keras_performer.PerformerAttention(NUM_HEADS, KEY_DIM, causal=causal))
    ]
    if length <= LONGEST_EXACT:
        exact = keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)
        steps.append(step(lambda x: exact(x, x, use_causal_mask=causal)))
    x = tf.random.stateless_normal((1, length, WIDTH), seed=(0, 1))
    seconds = [[] for _ in steps]
    for turn in range(rounds + 1):
        for run, times in zip(steps, seconds):
            start = time.perf_counter()
            run(x)
            if turn:  # the first call traces
                times.append(time.perf_counter() - start)
    medians = [np.median(times) for times in seconds]
    form = "causal" if causal else "bidirectional"
    ours = f"| {length:,} | {form} | {1e3 * medians[0]:,.0f} ms |"
    if len(medians) == 1:
        return f"{ours} not run | |"
    return f"{ours} {1e3 * medians[1]:,.0f} ms | {medians[1] / medians[0]:.1f} |"


def step(layer):
    """A function that computes a layer's output and all gradients."""

    @tf.function
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) ** 2)
        return tape.gradient(loss, [x, *tape.watched_variables()])

    return run


if __name__ == "__main__":
    main()
