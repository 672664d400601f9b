"""The loop over chunks has the outputs and gradients of one pass over all tokens."""

import numpy as np
import pytest
import tensorflow as tf

from keras_performer.ops import chunk_scan

from .cases import normal

BATCH, LENGTH, DIM = 2, 11, 3

INPUTS = {
    "x": normal((BATCH, LENGTH, DIM), 1),
    "ids": tf.constant(np.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % 5),
}
START = {"sum": normal((BATCH, DIM), 2), "count": tf.constant(3)}
PARAMS = (normal((DIM, DIM), 3), normal((5, DIM), 4))
WEIGHTS = normal((BATCH, LENGTH, DIM), 5)


def recurrence(inputs, state, params):
    """Computes a nonlinear recurrence, token by token, with a lookup in a table."""
    weights, table = params
    total, outputs = state["sum"], []
    count = state["count"]
    for t in range(inputs["x"].shape[1]):
        x = inputs["x"][:, t] + tf.gather(table, inputs["ids"][:, t])
        total = tf.tanh(total @ weights + x) * tf.cast(count, tf.float64) ** 0.1
        count += 1
        outputs.append(total)
    outputs = tf.stack(outputs, 1)
    return (outputs, outputs[..., 0] ** 2), {"sum": total, "count": count}


def scan(function, chunk_size, **options):
    given = function, chunk_size
    dtypes = tf.float64, tf.float64
    return lambda *arguments: chunk_scan(*given, *arguments, dtypes, **options)


def value_and_gradients(function):
    sources = [INPUTS["x"], START["sum"], *PARAMS]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        (first, second), end = function(INPUTS, START, PARAMS)
        loss = tf.reduce_sum(first * WEIGHTS) + tf.reduce_sum(second)
        loss += tf.reduce_sum(end["sum"] ** 3)
    gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, sources)]
    return [first, second, end["sum"], end["count"], *gradients]


def assert_same(function, expected, jit_compile=None):
    """Compares values and gradients, eagerly or in a graph, with or without XLA."""

    def compute():
        return value_and_gradients(function)

    if jit_compile is not None:
        compute = tf.function(compute, jit_compile=jit_compile)
    for found, wanted in zip(compute(), value_and_gradients(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "chunk_size, jit_compile",
    [(1, None), (4, False), (4, True), (10, None), (11, None), (100, False)],
)
def test_chunks_change_nothing(chunk_size, jit_compile):
    assert_same(scan(recurrence, chunk_size), recurrence, jit_compile)


@pytest.mark.parametrize("chunk_size, jit_compile", [(4, None), (4, True), (11, None)])
def test_from_the_last_chunk_on_it_is_the_scan_of_what_is_reversed(
    chunk_size, jit_compile
):
    def reversed_in(nest):
        return tf.nest.map_structure(lambda x: tf.reverse(x, [1]), nest)

    def backwards(inputs, state, params):
        outputs, end = recurrence(reversed_in(inputs), state, params)
        return reversed_in(outputs), end

    assert_same(scan(backwards, chunk_size, reverse=True), backwards, jit_compile)


def test_scans_nest():
    assert_same(scan(scan(recurrence, 2), 5), recurrence, jit_compile=False)


def test_a_chunk_is_computed_again_from_the_state_before_it():
    """The gradient calls the function again with the same states, in reverse order."""
    seen = []

    def function(x, state, params):
        tf.py_function(lambda s: seen.append(int(s)), [state], [])
        return x * params, state + 1

    x = tf.ones((1, 6, 1))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y, _ = chunk_scan(function, 2, x, tf.constant(0), 2.0, tf.float32)
    assert seen == [0, 1, 2]
    gradient = tape.gradient(y, x)
    assert seen == [0, 1, 2, 2, 1, 0]
    np.testing.assert_array_equal(gradient, 2 * np.ones((1, 6, 1)))


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_complex_sequences_have_gradients(wrap):
    x, turn = (
        tf.complex(normal(shape, seed), normal(shape, seed + 1))
        for shape, seed in (((BATCH, LENGTH), 6), ((BATCH, 1), 8))
    )

    def running(x, start, turn):
        sums = start + turn * tf.cumsum(x**2, 1)
        return sums, sums[:, -1:]

    def scanned(*arguments):
        return chunk_scan(running, 4, *arguments, tf.complex128)

    def gradients(function):
        with tf.GradientTape() as tape:
            tape.watch([x, turn])
            sums, _ = function(x, tf.zeros_like(turn), turn)
            loss = tf.reduce_sum(tf.abs(sums) ** 2)
        return tape.gradient(loss, [x, turn])

    results = wrap(lambda: gradients(scanned))()
    for result, wanted in zip(results, gradients(running), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-10)


def identity_scan(sequences, chunk_size=2):
    dtypes = tf.nest.map_structure(lambda x: tf.float32, sequences)
    return chunk_scan(lambda x, s, p: (x, s), chunk_size, sequences, (), (), dtypes)


@pytest.mark.parametrize(
    "message, shape",
    [(r"known length. Received: .*\(2, None\)", (2, None)), ("<unknown>", None)],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_unknown_lengths_are_refused(message, shape, is_first):
    specs = [tf.TensorSpec((2, 4)), tf.TensorSpec(shape)]
    function = tf.function(identity_scan, [specs[::-1] if is_first else specs])
    with pytest.raises(ValueError, match=message):
        function([tf.ones((2, 4))] * 2)


@pytest.mark.parametrize(
    "message, shapes",
    [
        (r"at least one\. Received: .*\[\]", []),
        (r"\(batch, length, ...\).*\(4,\)", [(2, 4), (4,)]),
        (r"same length, axis 1, of at least 1.*\(2, 0\)", [(2, 0)]),
        (r"same length, axis 1, .*\(2, 4\).*\(2, 5, 3\)", [(2, 4), (2, 5, 3)]),
    ],
)
def test_sequences_of_no_one_length_are_refused(message, shapes):
    with pytest.raises(ValueError, match=message):
        identity_scan([tf.ones(shape) for shape in shapes])


@pytest.mark.parametrize("chunk_size", [0, None, 2.0, True])
def test_chunk_sizes_are_positive_ints(chunk_size):
    with pytest.raises(ValueError, match=f"positive int.*chunk_size={chunk_size}"):
        identity_scan(tf.ones((1, 4)), chunk_size)
