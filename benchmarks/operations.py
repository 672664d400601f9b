"""What the operations that attention is made of cost by themselves.

    python -m benchmarks.operations [--threads 2] [--output runs/bench]

The arithmetic floor divides all floating-point operations by the rate of a 2048^3
product. The products of attention are smaller, and it needs more than products: here
each operation is timed alone, at the shape it has for one block of 512 tokens, in a
loop, with inputs that stay in cache. Their sum is the time of attention to 4,096 tokens
where no operation runs beside another, without any stabilizer, key mask, other
addition, division or column of ones; with it stand the share of the arithmetic floor
that such attention would reach, and the time of the op itself. The process has as many
cores as threads: with `--threads 1` nothing can run beside anything.
`benchmarks.report` reads the shares and the table from `operations.json`.
"""

import argparse
import itertools
import pathlib

import numpy as np
import tensorflow as tf

from benchmarks import (
    contenders,
    floor,
    machine,
    tables,
    tensorflow_programs,
    turns,
    worker,
)
from benchmarks.contenders import keras_layers

BLOCKS, TOKENS = 8, 512
LENGTH = BLOCKS * TOKENS
HEADS, DIM = contenders.NUM_HEADS, contenders.KEY_DIM
FEATURES, CHUNK = contenders.NUM_RANDOM_FEATURES, floor.CHUNK_SIZE
STEPS, ROUNDS = 64, 15  # of a loop, and of all loops
FORMS = (
    "bidirectional, forward",
    "bidirectional, training",
    "causal, forward",
    "causal, training",
)
JIT = (False, True)
MODES = ("graph", "XLA", "faster")  # the last: of both, for each operation


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=pathlib.Path, default="runs/bench")
    options = parser.parse_args()
    described = machine.describe(options.threads)
    worker.pin(options.threads)
    tensorflow_programs.start(options.threads)
    times, attention, product = measure()
    header = ["operation", "shape", "; ".join(FORMS), *(f"{mode} ms" for mode in MODES)]
    size = [contenders.MATMUL_SIZE] * 2
    rows = [["one, for its rate", f"{size} x {size}", "", f"{product:.2f}", "", ""]]
    for name, (_, shapes, counts) in OPERATIONS.items():
        text = " x ".join(str(list(shape)) for shape in shapes)
        needed = ", ".join(map(str, counts))
        rows.append([name, text, needed, *(f"{ms:.2f}" for ms in times[name])])
    reached = {}
    for form, total in totals(times).items():
        found = shares(form, total, product)
        reached[form] = dict(zip(MODES, found))
        sums = (f"{ms:.1f} (share: {share:.2f})" for ms, share in zip(total, found))
        rows.append([f"sum, {form}", f"{LENGTH} tokens", "", *sums])
        pairs = zip(attention[form], total)
        ops = (f"{ms:.1f} ({ms / least:.2f} of the sum)" for ms, least in pairs)
        rows.append([f"the op, {form}", f"{LENGTH} tokens", "", *ops])
    table = tables.table(header, rows)
    print(table)
    turns.save(
        options.output / "operations.json",
        {"machine": described, "shares": reached, "table": table},
    )


def measure():
    """Returns `(operations, attention, product)` in milliseconds.

    Of `BLOCKS` blocks by name, and of the op by form, each in `MODES`; of one large
    product.
    """
    programs = {"product": keras_program({"contender": "matmul", "mode": "graph"})}
    for jit in JIT:
        for name, (step, shapes, _) in OPERATIONS.items():
            for loop in LOOPS:
                programs[name, jit, loop] = program(*loop(step, shapes), jit)
        for form in FORMS:
            case = attention_case(form) | {"mode": "xla" if jit else "graph"}
            programs[form, jit] = keras_program(case)
    found = in_turns(programs)
    for name in OPERATIONS:
        for jit in JIT:
            fastest = min(found[name, jit, loop] for loop in LOOPS)
            found[name, jit] = fastest * BLOCKS / STEPS
    by_mode = {}
    for name in (*OPERATIONS, *FORMS):
        pair = [found[name, jit] for jit in JIT]
        by_mode[name] = [*pair, min(pair)]
    return (
        {name: by_mode[name] for name in OPERATIONS},
        {form: by_mode[form] for form in FORMS},
        found["product"],
    )


def in_turns(programs):
    """The median of each program's milliseconds; all see the same minutes."""
    seconds = {key: [] for key in programs}
    for _ in range(ROUNDS):
        for key, run in programs.items():
            seconds[key].append(worker.seconds(run))
    return {key: 1e3 * np.median(measured) for key, measured in seconds.items()}


def totals(times):
    """Milliseconds that all operations of a form take, in each of `MODES`."""
    return {
        form: np.sum(
            [
                np.multiply(counts[index], times[name])
                for name, (_, _, counts) in OPERATIONS.items()
            ],
            axis=0,
        )
        for index, form in enumerate(FORMS)
    }


def shares(form, total, product):
    """Which shares of the arithmetic floor `total` reaches; all in milliseconds.

    Args:
        form: one of `FORMS`.
        total: what the form's operations take, in each of `MODES`.
        product: what the large product takes.
    """
    return floor.seconds(attention_case(form), product) / total


def attention_case(form):
    attends, step = form.split(", ")
    case = {"contender": "softmax", "form": attends, "step": step}
    return case | {"part": "attention", "length": LENGTH, "dtype": "float32"}


def keras_program(case):
    """A function that has run once, and runs a step of one of our contenders."""
    _, run = keras_layers.program(case)
    run()
    return run


def program(loop, inputs, jit):
    """A function that has run once, and runs the loop."""
    compiled = tf.function(loop, jit_compile=jit)

    def run():
        return np.asarray(compiled(*inputs))  # no copy, as `numpy()` would make

    run()
    return run


# Two loops of `STEPS`, the faster counts: XLA copies what `alternating` takes from its
# pairs, TensorFlow copies what `replacing` changes. Each result takes the place of the
# one before, and no compiler can know two steps to be equal: none is left out or added.


def alternating(step, shapes):
    """A function whose steps use two sets of inputs by turns; and its arguments."""
    inputs = [normal((2, *shape), index) for index, shape in enumerate(shapes)]

    def loop(first, *inputs):
        return tf.while_loop(
            lambda i, _: i < STEPS,
            lambda i, _: (i + 1, step(*(x[i % 2] for x in inputs))),
            (0, first),
            parallel_iterations=1,
        )[1]

    return loop, [step(*(x[0] for x in inputs)), *inputs]


def replacing(step, shapes):
    """A function whose steps put one element of the last result, clipped so that it
    stays finite, into the first input; and its arguments."""
    inputs = [normal(shape, index) for index, shape in enumerate(shapes)]

    def loop(first, x, *rest):
        def body(i, _, x):
            result = step(x, *rest)
            element = tf.clip_by_value(tf.reshape(result, [-1])[:1], -1.0, 1.0)
            origin = tf.zeros((1, len(x.shape)), tf.int32)
            return i + 1, result, tf.tensor_scatter_nd_update(x, origin, element)

        return tf.while_loop(
            lambda i, *_: i < STEPS, body, (0, first, x), parallel_iterations=1
        )[1]

    return loop, [step(*inputs), *inputs]


LOOPS = (alternating, replacing)


def normal(shape, index):
    return tf.random.stateless_normal(shape, seed=(0, index))


FLAT = HEADS * TOKENS
# Hyperbolic features come in two parts, which share one projection.
PART = FEATURES // 2
CHUNKS = (HEADS, TOKENS // CHUNK)
# Name: the operation, the shapes of its inputs, how often a block with hyperbolic
# features needs it, in the order of `FORMS`. A training step is forward and backward.
PRODUCTS = {
    "project": (
        lambda x, w: tf.matmul(x, w, transpose_b=True),
        [(FLAT, DIM), (PART, DIM)],
        (2, 4, 2, 4),
    ),
    "project back": (
        lambda a, w: tf.matmul(a, w),
        [(FLAT, PART), (PART, DIM)],
        (0, 2, 0, 2),
    ),
    "sum over tokens": (
        lambda v, e: tf.matmul(v, e, transpose_a=True),
        [(HEADS, TOKENS, DIM + 1), (HEADS, TOKENS, PART)],
        (2, 4, 0, 0),
    ),
    "sum over features": (
        lambda p, s: tf.matmul(p, s, transpose_b=True),
        [(HEADS, TOKENS, PART), (HEADS, DIM + 1, PART)],
        (2, 4, 0, 0),
    ),
    "gradient of features": (
        lambda d, s: tf.matmul(d, s),
        [(HEADS, TOKENS, DIM + 1), (HEADS, DIM + 1, PART)],
        (0, 4, 0, 0),
    ),
    "chunk: sum over tokens": (
        lambda v, e: tf.matmul(v, e, transpose_a=True),
        [(*CHUNKS, CHUNK, DIM + 1), (*CHUNKS, CHUNK, PART)],
        (0, 0, 2, 6),
    ),
    "chunk: sum over features": (
        lambda p, s: tf.matmul(p, s, transpose_b=True),
        [(*CHUNKS, CHUNK, PART), (*CHUNKS, DIM + 1, PART)],
        (0, 0, 2, 4),
    ),
    "chunk: gradient of features, from states": (
        lambda d, s: tf.matmul(d, s),
        [(*CHUNKS, CHUNK, DIM + 1), (*CHUNKS, DIM + 1, PART)],
        (0, 0, 0, 4),
    ),
    "chunk: weights": (
        lambda p, e: tf.matmul(p, e, transpose_b=True),
        [(*CHUNKS, CHUNK, PART), (*CHUNKS, CHUNK, PART)],
        (0, 0, 2, 4),
    ),
    "chunk: weighted values": (
        lambda w, v: tf.matmul(w, v),
        [(*CHUNKS, CHUNK, CHUNK), (*CHUNKS, CHUNK, DIM + 1)],
        (0, 0, 1, 1),
    ),
    "chunk: gradient of values": (
        lambda w, d: tf.matmul(w, d, transpose_a=True),
        [(*CHUNKS, CHUNK, CHUNK), (*CHUNKS, CHUNK, DIM + 1)],
        (0, 0, 0, 1),
    ),
    "chunk: gradient of weights": (
        lambda d, v: tf.matmul(d, v, transpose_b=True),
        [(*CHUNKS, CHUNK, DIM + 1), (*CHUNKS, CHUNK, DIM + 1)],
        (0, 0, 0, 1),
    ),
    "chunk: gradient of query features, from weights": (
        lambda w, e: tf.matmul(w, e),
        [(*CHUNKS, CHUNK, CHUNK), (*CHUNKS, CHUNK, PART)],
        (0, 0, 0, 2),
    ),
    "chunk: gradient of key features, from weights": (
        lambda w, p: tf.matmul(w, p, transpose_a=True),
        [(*CHUNKS, CHUNK, CHUNK), (*CHUNKS, CHUNK, PART)],
        (0, 0, 0, 2),
    ),
}
# A batch of products needs heads first: queries, keys and values in both passes, and
# the gradient of the output. Outputs and the other gradients go back.
OTHERS = {
    "exp": (
        lambda a: tf.exp(a),
        [(HEADS, TOKENS, PART)],
        (4, 8, 4, 8),
    ),
    "gradient of what both parts project": (
        lambda p, dp, e, de: p * dp - e * de,
        [(HEADS, TOKENS, PART)] * 4,
        (0, 2, 0, 2),
    ),
    "heads first, or back": (
        lambda x: tf.transpose(x, (1, 0, 2)),
        [(TOKENS, HEADS, DIM)],
        (4, 11, 4, 11),
    ),
    "chunk: sums before each": (
        lambda x: tf.stack(list(itertools.accumulate(tf.unstack(x, axis=1))), 1),
        [(*CHUNKS, DIM + 1, PART)],
        (0, 0, 2, 6),
    ),
    "chunk: mask": (
        lambda w: tf.linalg.band_part(w, -1, 0),
        [(*CHUNKS, CHUNK, CHUNK)],
        (0, 0, 1, 3),
    ),
}
OPERATIONS = PRODUCTS | OTHERS


if __name__ == "__main__":
    main()
