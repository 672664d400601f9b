"""Trains one small model on one task, and notes how well it does and when."""

import functools
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.learning import models
from keras_performer import calibrate

WARMUP_STEPS = 50
# From so many steps on compiling with XLA, as `fit` does, pays: it takes as long as 50.
COMPILED_FROM = 200
# What tells runs apart, beside their tasks.
FIELDS = "row", "key_dim", "seed", "learning_rate", "steps"
# What takes the place of the exact attention of trained models.
SWAPPED = (
    *(models.WINDOW, "softmax", "taylor", "window + softmax", "window + taylor"),
    *("window + softmax, low gain", "window + taylor, low gain"),
    *("window + softmax, calibrated", "window + taylor, calibrated"),
)
CALIBRATED, NUM_BATCHES = ", calibrated", 6
# Random features are drawn so often for each trained model.
NUM_DRAWS = 2


def train(task, row, key_dim, seed, learning_rate, steps, evaluations):
    """Trains a model.

    Seconds are those of the processor if there is one thread: on an idle core they are
    those of a clock, and what else the machine does adds nothing to them.

    Returns:
        Dict of numbers about the run, and its `"curve"`: lists of steps, seconds of
        training (without the first two steps of each length, which trace), loss in bits
        of the last step, and what `Task.measure` says of held-out data, of each of
        `Task.parts` where there are any. It ends before `steps` where `Task.enough` was
        reached. Of exact attention and a task in bits without parts also `"swap"`,
        from `bits_lost`.
    """
    began = time.perf_counter()
    model = models.make_model(task, row, key_dim, seed)
    random = np.random.default_rng([seed, 7])
    before = None
    if row.endswith(f", {models.REDRAW}"):
        before = functools.partial(redraw, model)
    curve = learn(model, task, learning_rate, steps, evaluations, random, before)
    num_heads = task.hidden_dim // key_dim
    more = {}
    if task.parts:
        more["parts"] = task.parts
    elif row == models.EXACT and task.measure == "bits":
        more["swap"] = bits_lost(model, task, key_dim, seed)
    return record(
        task,
        began,
        dict(row=row, key_dim=key_dim, seed=seed),
        dict(learning_rate=learning_rate, steps=steps),
        dict(state=models.numbers_in_state(row, task, num_heads, key_dim), **more),
        figures(model, curve),
    )


def figures(model, curve):
    """Of a run: the size of the model, its last value, seconds, and the curve."""
    last = {"result": curve[-1][3], "seconds": curve[-1][1], "curve": curve}
    return {"parameters": models.count_parameters(model), **last}


def record(task, began, *of_run):
    """A line of `runs.jsonl`: the task and the machine, and dicts about the run."""
    found = {
        "task": task.name,
        "measure": task.measure,
        "window": task.window,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "machine": runner.machine(),
        "tensorflow": tf.__version__,
    }
    for numbers in of_run:
        found |= numbers
    return {**found, "seconds_in_all": round(time.perf_counter() - began, 1)}


def learn(
    model, task, learning_rate, steps, evaluations, random, before=None, decay=False
):
    """Trains a model, and measures it on the way; returns the curve of `train`.

    `before` is a function of the number of a step, from 1, that is called before it;
    with `decay` the learning rate falls on a line to 0 after `steps`.
    """
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    clock = time.process_time if threads == 1 else time.perf_counter
    compiles = steps >= COMPILED_FROM
    step = step_of(model, learning_rate, compiles, steps if decay else None)
    measure = measuring(model, task)
    curve, seconds = [], 0.0
    noted = set(np.linspace(0, steps, evaluations + 1, dtype=int)[1:])
    index = 0
    for draw, batch_size, end in task.stages(steps):
        untimed = index + 2
        while index < end:
            index += 1
            batch = [tf.constant(x) for x in draw(random, batch_size)]
            if before is not None:
                before(index)
            start = clock()
            loss = float(step(index, *batch))
            if index > untimed:
                seconds += clock() - start
            if index in noted:
                values = [round(float(value), 4) for value in np.atleast_1d(measure())]
                curve.append([index, round(seconds, 3), round(loss, 4), *values])
                if task.enough is not None and values[0] >= task.enough:
                    return curve
    return curve


def redraw(model, index):
    if index % models.REDRAW_STEPS == 1:
        for block in model.blocks:
            block.attention.redraw_features()


def step_of(model, learning_rate, jit_compile, decay_steps=None):
    """A function that takes a step of training: of its number, from 1, and a batch."""
    optimizer = keras.optimizers.Adam(learning_rate, beta_2=0.98, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False, jit_compile=jit_compile)
    def compiled(inputs, targets, weights):
        with tf.GradientTape() as tape:
            loss = bits(model(inputs, training=True), targets, weights)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def step(index, *batch):
        rate = learning_rate * min(1.0, index / WARMUP_STEPS)
        if decay_steps is not None:
            rate *= 1 - (index - 1) / decay_steps
        optimizer.learning_rate.assign(rate)
        return compiled(*batch)

    return step


def measuring(model, task):
    """A function that says how well the model does, as it then is, on held-out data.

    It returns a float, or an array of one for each of `Task.parts`.
    """
    sums = summing(model, task)

    def measure():
        right, loss, asked = sums().sum(-1)
        return {"accuracy": right, "bits": loss}[task.measure] / asked

    return measure


def summing(model, task):
    """A function that returns sums over each held-out sequence, of the model as it is.

    They are a float64 array `(3, sequences)`: right answers, bits, and questions; with
    `Task.parts` one of `(3, parts, sequences)`.
    """
    held_out = task.held_out()

    @tf.function(autograph=False)
    def sums(inputs, targets, weights):
        logits = model(inputs)
        right = tf.argmax(logits, -1, output_type=tf.int32) == targets
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        loss /= tf.math.log(2.0)
        terms = tf.stack([tf.cast(right, tf.float32), loss, tf.ones_like(loss)])
        if task.parts:
            terms = terms[:, tf.newaxis]
        return tf.reduce_sum(terms * weights, -1)

    def now():
        parts = [sums(*map(tf.constant, batch)).numpy() for batch in held_out]
        return np.concatenate(parts, -1).astype(np.float64)

    return now


def bits(logits, targets, weights):
    """The mean cross entropy of what is asked, in bits."""
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_sum(loss * weights) / tf.reduce_sum(weights) / tf.math.log(2.0)


def bits_lost(model, task, key_dim, seed):
    """Held-out bits lost, by the row whose attention takes the place of the exact."""
    exact = measuring(model, task)()
    lost = {}
    for row in SWAPPED:
        draws = range(NUM_DRAWS if "softmax" in row else 1)
        seeds = [NUM_DRAWS * seed + draw for draw in draws]
        bits = statistics.mean(
            measuring(swapped(model, task, row, key_dim, seed), task)()
            for seed in seeds
        )
        lost[row] = round(bits - exact, 4)
    return lost


def swapped(model, task, row, key_dim, seed):
    """A model with the weights of another, and the attention of a row."""
    row, calibrated, _ = row.partition(CALIBRATED)
    other = models.make_model(task, row, key_dim, seed)
    copy_weights(model, other)
    if not calibrated:
        return other
    random = np.random.default_rng([seed, 9])
    # four sequences at once, of those that are trained on
    batches = (task.draw(random, 4)[0] for _ in range(NUM_BATCHES))
    return calibrate(other, batches, max_batches=NUM_BATCHES, verbose=0)[0]


def copy_weights(model, other):
    """Gives all weights of a model to one that may also have gains, which stay."""
    weights = [w for w in other.trainable_weights if w.name != "log_gain"]
    for source, target in zip(model.trainable_weights, weights, strict=True):
        target.assign(source)
