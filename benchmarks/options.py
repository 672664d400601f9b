"""Measures the cost of options of the layer: training steps with and without each.

    python -m benchmarks.options [--lengths 4096 16384] [--pairs 20] [--threads 2]
        [--only WORDS ...]

Steps in graph mode with and without the option run in pairs, in alternating order; a
ratio is the median over pairs. Steps have one example and 512 units: 8 heads of head
size 64 with 256 features. Beside exact attention there are 32 heads of head size 16,
with the recommended settings: 128 features with a gate, otherwise 256, compiled as in
`fit`.
"""

import statistics

import keras
import tensorflow as tf

import keras_performer
from benchmarks import runner, worker
from benchmarks.contenders import steps
from benchmarks.tables import table
from keras_performer import ops
from keras_performer.layers import ExactAttention

PLAIN = dict(num_heads=8, key_dim=64)
WINDOW = dict(**PLAIN, exact_window=64)
HEADS = dict(num_heads=32, key_dim=16)
EXACT = dict(**HEADS, exact=True)
SMALL = dict(**HEADS, exact_window=64, jit_compile="auto")
GATED = dict(**SMALL, num_random_features=128, forget_gate=True)
# Arguments of the layer with the option, and without it. `segments` is the number of
# tokens in each segment of the call; `exact` makes `ExactAttention`.
LAYERS = {
    f"{name}, {form}": ({**with_option, **given}, {**without, **given})
    for name, with_option, without in (
        ("a window of 64", WINDOW, PLAIN),
        ("a window of 512 for 64", {**PLAIN, "exact_window": 512}, WINDOW),
        ("a gate", {**PLAIN, "forget_gate": True}, PLAIN),
        ("a gate and a window", {**WINDOW, "forget_gate": True}, WINDOW),
        ("segments of 512", {**PLAIN, "segments": 512}, PLAIN),
        ("segments of 512 and a window", {**WINDOW, "segments": 512}, WINDOW),
        ("exact attention for a window, head size 16", EXACT, SMALL),
        ("exact attention for a window and a gate, head size 16", EXACT, GATED),
    )
    for form, given in (("causal", {"causal": True}), ("bidirectional", {}))
}
# Arguments of `attention_step`, and standard deviations of queries and keys, one for
# each example, with the option and without.
LARGE = {
    f"{name}, {form}": (given, stds)
    for name, stds in {
        "std 8 for 1": [(8,), (1,)],
        "std 12 for 1": [(12,), (1,)],
        "std 16 for 1": [(16,), (1,)],
        "one example of four with std 16": [(16, 1, 1, 1), (1, 1, 1, 1)],
    }.items()
    for form, given in {
        "causal": dict(causal=True),
        "causal with a window": dict(causal=True, exact_window=64),
        "bidirectional with a window": dict(exact_window=64),
    }.items()
}


def main(argv=None):
    more = dict(lengths=(4096, 16384), pairs=20, threads=2, only=[str])
    options = runner.options(__doc__, argv, **more)
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    cells = []
    for name in (*LAYERS, *LARGE):
        if options.only and not any(word in name for word in options.only):
            continue
        for length in options.lengths:
            middle, low, high = ratios(pair(name, length), options.pairs)
            row = [name, f"{length:,}", f"{middle:.2f}", f"{low:.2f}-{high:.2f}"]
            cells.append(row)
            print(" | ".join(row), flush=True)
    header = ["option", "tokens", "time", "middle half"]
    print(table(header, cells), runner.describe(options.threads), sep="\n\n")


def pair(name, length):
    """Returns steps with and without an option: functions without arguments."""
    if name in LAYERS:
        return [layer_step(length, **given) for given in LAYERS[name]]
    given, both = LARGE[name]
    return [attention_step(stds, length, **given) for stds in both]


def layer_step(length, segments=None, exact=False, **arguments):
    """Makes a training step of a layer; `segments` is the tokens of a segment."""
    if exact:
        layer = ExactAttention(**arguments)
    else:
        arguments = {"jit_compile": False, "seed": 0, **arguments}
        layer = keras_performer.PerformerAttention(**arguments)
    packed = {}
    if segments:
        packed["segment_ids"] = tf.range(length)[tf.newaxis] // segments
    x = keras.random.normal((1, length, 512), seed=0)
    return steps.program(lambda x: layer(x, training=True, **packed), x)


def attention_step(stds, length, exact_window=None, causal=False):
    """Makes a step of the op, with standard deviations `stds` of queries and keys."""
    softmax = keras_performer.feature_maps.get("softmax")
    kernel = softmax.kernel(softmax.draw(256, 64, (0, 1)))
    shape = len(stds), length, 8, 64
    query, key, value = (keras.random.normal(shape, seed=seed) for seed in range(3))
    std = tf.reshape(tf.constant(stds, "float32"), (-1, 1, 1, 1))
    visible = ops.Visibility(causal=causal)

    def attended(*inputs):
        if exact_window:
            return ops.windowed_attention(*inputs, kernel, exact_window, None, visible)[
                0
            ]
        return ops.causal_attention(*inputs, kernel)[0]

    return steps.program(attended, std * query, std * key, value)


def ratios(both, pairs):
    """Returns the median and the quartiles of the ratios of two steps."""
    for step in (*both, *both):  # TensorFlow optimizes again at the second call
        step()
    found = []
    for index in range(pairs):
        order = (0, 1) if index % 2 else (1, 0)
        seconds = {side: worker.seconds(both[side]) for side in order}
        found.append(seconds[0] / seconds[1])
    low, middle, high = statistics.quantiles(found, n=4)
    return middle, low, high


if __name__ == "__main__":
    main()
