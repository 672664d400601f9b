"""Measures the cost of the layer's options: training steps with and without one.

    python -m benchmarks.options [--lengths 4096 16384] [--pairs 20] [--threads 2]

A pair is one step of each, one right after the other, in an order that alternates; a
ratio is the median of its pairs. Memory is what a process of its own needs at its peak
for three steps above what it had before. One example, 512 units: 8 heads of 64 with 256
features, for "taylor" 32 heads of 16.
"""

import argparse
import functools
import statistics
import time

import keras
import tensorflow as tf

import keras_performer
from benchmarks import machine, processes, worker
from benchmarks.tables import table
from keras_performer import ops

PLAIN = dict(num_heads=8, key_dim=64)
SMALL = dict(num_heads=32, key_dim=16, exact_window=64)
WINDOW = dict(exact_window=64)
CAUSAL = dict(causal=True)
SIDES = {"causal": CAUSAL, "bidirectional": {}}


def of_sides(name, with_option, without):
    return {
        f"{name}, {side}": ({**with_option, **given}, {**without, **given})
        for side, given in SIDES.items()
    }


# What is compared: arguments of the layer with the option, and without; `segments`
# are those of the call, of so many tokens.
LAYERS = {
    **of_sides("a window of 64", {**PLAIN, **WINDOW}, PLAIN),
    **of_sides('"taylor" for "softmax"', {**SMALL, "feature_map": "taylor"}, SMALL),
    **of_sides(
        "a window of 512 for 64", {**PLAIN, "exact_window": 512}, {**PLAIN, **WINDOW}
    ),
    **of_sides("a gate", {**PLAIN, "forget_gate": True}, PLAIN),
    **of_sides(
        "a gate and a window",
        {**PLAIN, **WINDOW, "forget_gate": True},
        {**PLAIN, **WINDOW},
    ),
    **of_sides("segments of 512", {**PLAIN, "segments": 512}, PLAIN),
    **of_sides(
        "segments of 512 and a window",
        {**PLAIN, **WINDOW, "segments": 512},
        {**PLAIN, **WINDOW},
    ),
}
# Arguments of `attention_step`; the standard deviations of queries and keys, one for
# each example, with the option and without.
LARGE = {
    f"{name}, {side}": (given, stds)
    for name, stds in {
        "std 8 for 1": [(8,), (1,)],
        "std 12 for 1": [(12,), (1,)],
        "std 16 for 1": [(16,), (1,)],
        "one example of four with std 16": [(16, 1, 1, 1), (1, 1, 1, 1)],
    }.items()
    for side, given in {
        "causal": CAUSAL,
        "causal with a window": {**CAUSAL, **WINDOW},
        "bidirectional with a window": WINDOW,
    }.items()
}


def main(argv=None):
    """Measures and prints a table."""
    options = parsed(argv)
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    cells = []
    for name in (*LAYERS, *LARGE):
        if options.only and not any(word in name for word in options.only):
            continue
        for length in options.lengths:
            for jit_compile in options.modes:
                steps = pair(name, length, jit_compile)
                ratio, low, high = ratios(steps, options.pairs)
                row = [name, f"{length:,}", "auto" if jit_compile else "graph"]
                row += [f"{ratio:.2f}", f"{low:.2f}-{high:.2f}"]
                row.append(memory(name, length, jit_compile) if options.memory else "-")
                cells.append(row)
                print(" | ".join(row), flush=True)
    print(
        table(["option", "tokens", "mode", "time", "middle half", "memory"], cells),
        machine.describe(options.threads),
        sep="\n\n",
    )


def parsed(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=(4096, 16384))
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="words of the options' names")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument(
        "--modes", nargs="+", type=mode, default=(False, "auto"), help="graph, auto"
    )
    return parser.parse_args(argv)


def mode(text):
    return {"graph": False, "auto": "auto"}[text]


def pair(name, length, jit_compile):
    """The steps with an option and without it, functions of nothing."""
    if name in LAYERS:
        return [layer_step(length, jit_compile, **given) for given in LAYERS[name]]
    given, both = LARGE[name]
    return [attention_step(stds, length, jit_compile, **given) for stds in both]


def layer_step(length, jit_compile, segments=None, **arguments):
    """A training step of a layer, on segments of so many tokens."""
    layer = keras_performer.PerformerAttention(
        **arguments, jit_compile=jit_compile, seed=0
    )
    x = keras.random.normal((1, length, 512), seed=0)
    layer.build(x.shape)
    packed = {}
    if segments:
        packed["segment_ids"] = tf.range(length)[tf.newaxis] // segments

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True, **packed) ** 2)
        return tape.gradient(loss, [x, *layer.trainable_variables])

    return functools.partial(finished, step)


def attention_step(stds, length, jit_compile, exact_window=None, causal=False):
    """Outputs and gradients of the op; queries and keys of a standard deviation."""
    matrix = keras_performer.feature_maps.get("softmax").draw(256, 64, (0, 1))
    kernel = keras_performer.feature_maps.get("softmax").kernel(matrix)
    shape = len(stds), length, 8, 64
    query, key, value = (keras.random.normal(shape, seed=seed) for seed in range(3))
    std = tf.reshape(tf.constant(stds, "float32"), (-1, 1, 1, 1))
    query, key = std * query, std * key
    visible = ops.Visibility(causal=causal)
    compiled = dict(jit_compile=bool(jit_compile))

    @tf.function(autograph=False)
    def step():
        inputs = query, key, value, kernel
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            if exact_window:
                output, _ = ops.windowed_attention(
                    *inputs, exact_window, None, visible, **compiled
                )
            else:
                output, _ = ops.causal_attention(*inputs, **compiled)
            loss = tf.reduce_sum(output * value)
        return tape.gradient(loss, (query, key, value))

    return functools.partial(finished, step)


def finished(step):
    """Runs a step to its end."""
    for gradient in step():
        gradient.numpy()


def ratios(steps, pairs):
    """The median of the steps' ratios, and their quartiles."""
    for step in (*steps, *steps):  # TensorFlow optimizes again at the second call
        step()
    found = []
    for index in range(pairs):
        seconds = {}
        for side in (0, 1) if index % 2 else (1, 0):
            start = time.perf_counter()
            steps[side]()
            seconds[side] = time.perf_counter() - start
        found.append(seconds[0] / seconds[1])
    low, middle, high = statistics.quantiles(found, n=4)
    return middle, low, high


def memory(name, length, jit_compile):
    """The ratio of what the two steps need, each in a process of its own."""
    peaks = [processes.call(peak, name, length, jit_compile, side) for side in (0, 1)]
    return f"{peaks[0] / peaks[1]:.2f}"


def peak(name, length, jit_compile, side):
    """Bytes that steps need at their peak above what the process had before."""
    step = pair(name, length, jit_compile)[side]
    # a spawned process has its parent's peak
    worker.forget_peak()
    before = worker.resident("VmRSS")
    for _ in range(3):
        step()
    return worker.resident("VmHWM") - before


if __name__ == "__main__":
    main()
