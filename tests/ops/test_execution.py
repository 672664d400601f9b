"""Eagerly, in graphs and under XLA: equal numbers, small graphs, no retracing."""

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops

from .cases import HEAD_DIM, KERNELS, assert_all_close, masks, qkv, value_and_gradients

ATTENTIONS = {
    "bidirectional": lambda q, k, v, kernel, mask: ops.bidirectional_attention(
        q, k, v, kernel, mask
    ),
    "causal": lambda q, k, v, kernel, mask: ops.causal_attention(
        q, k, v, kernel, mask, chunk_size=4
    )[0],
}


def step(attention, kernel):
    """Output and gradients of `(query, key, value, mask)`, counting its traces."""

    def function(query, key, value, mask):
        function.traces += 1
        attend = functools.partial(ATTENTIONS[attention], kernel=kernel, mask=mask)
        return value_and_gradients(attend, (query, key, value))

    function.traces = 0
    return function


def batch(length, seed=0):
    inputs = qkv(3, length, length, heads=2, groups=2, dtype="float32", seed=seed)
    return *inputs, tf.constant(masks(length)["different"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "attention, name", [("bidirectional", "softmax"), ("causal", "softmax")]
)
def test_eager_equals_xla(attention, name):
    """37 tokens in chunks of 4: three blocks of four chunks, with padding.

    Then keys that dwarf others: the rare branch of causal attention, compiled too.
    """
    function = step(attention, KERNELS[name]())
    compiled = tf.function(function, jit_compile=True)
    assert_all_close(compiled(*batch(37)), function(*batch(37)), 2e-6)
    traces = function.traces
    query, key, value, mask = batch(37, seed=1)
    scale = np.where(np.arange(37) % 10 == 0, 12.0, 1.0)[:, None, None]
    inputs = query, key * tf.constant(scale, "float32"), value, mask
    assert_all_close(compiled(*inputs), function(*inputs), 5e-6)
    assert function.traces == traces + 1  # the eager call, and no other


def unknown(*dims):
    return tf.TensorSpec((None, None, *dims), tf.float32)


@pytest.mark.parametrize(
    "attention, name", [("bidirectional", "relu"), ("causal", "softmax")]
)
def test_unknown_batch_and_length(attention, name):
    kernel = KERNELS[name]()

    def forward(query, key, value, mask):
        forward.traces += 1
        return ATTENTIONS[attention](query, key, value, kernel, mask)

    def train(query, key, value, mask):
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            loss = tf.reduce_sum(forward(query, key, value, mask) ** 2)
        return tape.gradient(loss, (query, key, value))

    forward.traces = 0
    specs = unknown(4, HEAD_DIM), unknown(2, HEAD_DIM), unknown(2, 7)
    specs = *specs, tf.TensorSpec((None, None), tf.bool)
    graph = tf.function(train, input_signature=specs)
    query, *rest = batch(37)
    scale = np.where(np.arange(37) % 10 == 0, 12.0, 1.0)[:, None, None]
    large = query, rest[0] * tf.constant(scale, "float32"), *rest[1:]
    for inputs in batch(37), [x[:1] for x in batch(1)], large:
        assert_all_close(graph(*inputs), train(*inputs), 5e-6)
    assert forward.traces == 3 + 1  # the eager calls, and one trace


def traced(attention, length, dtype=tf.float32):
    """The graph of a step with the default chunks, and the seconds to trace it."""
    kernel = KERNELS["softmax"]()

    def function(query, key, value):
        if attention == "causal":
            attend = lambda *x: ops.causal_attention(*x, kernel)[0]  # noqa: E731
        else:
            attend = lambda *x: ops.bidirectional_attention(*x, kernel)  # noqa: E731
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            loss = tf.reduce_sum(attend(query, key, value) ** 2)
        return tape.gradient(loss, (query, key, value))

    specs = [
        tf.TensorSpec((1, length, heads, dim), dtype)
        for heads, dim in ((2, HEAD_DIM), (1, HEAD_DIM), (1, 7))
    ]
    start = time.process_time()  # not the clock's: other tests run beside this one
    graph = tf.function(function).get_concrete_function(*specs).graph
    return graph.as_graph_def(), time.process_time() - start


@functools.cache
def nodes(attention, length, dtype=tf.float32):
    """All nodes, of the graph and of the bodies of its loops and branches."""
    graph_def, _ = traced(attention, length, dtype)
    bodies = [function.node_def for function in graph_def.library.function]
    return [node for body in (graph_def.node, *bodies) for node in body]


@pytest.mark.slow
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_tracing_a_long_sequence_takes_no_longer(attention):
    traced(attention, 1024)
    short = min(traced(attention, 1024)[1] for _ in range(2))
    long = min(traced(attention, 65536)[1] for _ in range(2))
    assert long < 2 * short


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_graph_does_not_grow_with_the_length(attention):
    sizes = [len(nodes(attention, length)) for length in (2048, 65536)]
    assert sizes[0] == sizes[1]
    assert sizes[0] < 3000


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_float32_graph_has_no_float64(attention):
    doubles = [
        node.name
        for node in nodes(attention, 2048)
        if any(
            tf.float64.as_datatype_enum in (attr.type, *attr.list.type)
            for attr in node.attr.values()
        )
    ]
    assert doubles == []


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_loops_write_no_bfloat16_arrays(attention):
    """XLA on CPUs copies such an array whole for each block: no longer linear time."""
    found = nodes(attention, 2048, tf.bfloat16)
    arrays = [node for node in found if node.op == "TensorListSetItem"]
    written = {tf.as_dtype(node.attr["element_dtype"].type) for node in arrays}
    assert written == {tf.float32}
