"""Eager calls, graphs and XLA give equal numbers; graphs are small, not retraced."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_performer import ops
from keras_performer.ops import blocks
from keras_performer.ops.linear.loops import Causal
from keras_performer.ops.linear.reach import Reach
from keras_performer.ops.windowed import linear_attention

from .cases import (
    HEAD_DIM,
    KERNELS,
    assert_all_close,
    masks,
    normal,
    qkv,
    segment_starts,
    softmax_kernel,
    value_and_gradients,
)

FIRSTS = (0, 1, 2, 9, 10, 11, 16, 32, 33), (0, 7, 8), (0, 36)  # of segments


def packed(query, key, value, kernel, mask):
    """Computes bidirectional attention in chunks of 4."""
    visible = ops.Visibility(mask, starts=segment_starts(FIRSTS, query.shape[1]))
    return linear_attention(query, key, value, kernel, visible, chunk_size=4)[0]


ATTENTIONS = {
    "bidirectional": lambda q, k, v, kernel, mask: ops.bidirectional_attention(
        q, k, v, kernel, mask
    ),
    "causal": lambda q, k, v, kernel, mask: ops.causal_attention(
        q, k, v, kernel, mask, chunk_size=4
    )[0],
}


def step(attend, kernel):
    """Returns a function to output and gradients that counts its traces."""

    def function(query, key, value, mask):
        function.traces += 1
        attention = functools.partial(attend, kernel=kernel, mask=mask)
        return value_and_gradients(attention, (query, key, value))

    function.traces = 0
    return function


def batch(length, seed=0):
    inputs = qkv(3, length, length, heads=2, groups=2, dtype="float32", seed=seed)
    return *inputs, tf.constant(masks(length)["different"])


@pytest.mark.slow
@pytest.mark.parametrize("attend", [*ATTENTIONS.values(), packed])
def test_eager_equals_xla(attend):
    """Tests 37 tokens in chunks of 4: three blocks of four chunks, with padding.

    Then tests keys that dwarf others, for the compiled rare branch of causal attention.
    """
    function = step(attend, softmax_kernel())
    compiled = tf.function(function, jit_compile=True)
    assert_all_close(compiled(*batch(37)), function(*batch(37)), 2e-6)
    traces = function.traces
    query, key, value, mask = batch(37, seed=1)
    scale = np.where(np.arange(37) % 10 == 0, 12.0, 1.0)[:, None, None]
    inputs = query, key * tf.constant(scale, "float32"), value, mask
    assert_all_close(compiled(*inputs), function(*inputs), 5e-6)
    assert function.traces == traces + 1  # by the eager call only


def traced(attention, length, dtype=tf.float32):
    """Returns the graph of a step with the default chunks."""
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
    graph = tf.function(function).get_concrete_function(*specs).graph
    return graph.as_graph_def()


@functools.cache
def nodes(attention, length, dtype=tf.float32):
    """Returns all nodes of the graph, and of the bodies of its loops and branches."""
    graph_def = traced(attention, length, dtype)
    bodies = [function.node_def for function in graph_def.library.function]
    return [node for body in (graph_def.node, *bodies) for node in body]


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
    """XLA on CPUs copies such arrays whole for each block, so time is not linear."""
    found = nodes(attention, 2048, tf.bfloat16)
    arrays = [node for node in found if node.op == "TensorListSetItem"]
    written = {tf.as_dtype(node.attr["element_dtype"].type) for node in arrays}
    assert written == {tf.float32}


# Unknown and empty shapes; numbers of padded tokens.
def bidirectional(x, starts, causal=False, window=None):
    visible = ops.Visibility(causal=causal, starts=starts)
    return linear_attention(x, x, x, softmax_kernel(), visible, window)[0]


def unpacked(x, starts):
    return bidirectional(x, None)


causal = functools.partial(bidirectional, causal=True)
window = functools.partial(bidirectional, causal=True, window=3)
bidirectional_window = functools.partial(bidirectional, window=3)
FORMS = [causal, window, bidirectional, bidirectional_window]


@pytest.mark.parametrize(
    "both, one", [(bidirectional, causal), (bidirectional_window, window)]
)
def test_the_loops_of_two_directions_are_traced_once(both, one):
    def count(attend):
        def gradients(x, starts):
            return value_and_gradients(lambda x: attend(x, starts), [x])

        specs = tf.TensorSpec((1, 600, 2, 5)), tf.TensorSpec((1, 600), tf.bool)
        traced = tf.function(gradients, autograph=False)
        graph = traced.get_concrete_function(*specs).graph.as_graph_def()
        bodies = [function.node_def for function in graph.library.function]
        return sum(len(body) for body in (graph.node, *bodies))

    # a second trace would double the count
    assert count(both) < 1.4 * count(one)


@pytest.mark.parametrize("attend", FORMS)
def test_packed_sequences_of_an_unknown_length(attend):
    x = normal((2, 23, 2, 5), 1, dtype="float32")
    starts = tf.constant(normal((2, 23), 2) > 1)

    def gradients(x, starts):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = attend(x, starts)
            loss = tf.reduce_sum(output**2)
        return output, tape.gradient(loss, x)

    shapes = tf.TensorSpec((None, None, 2, 5)), tf.TensorSpec((None, None), tf.bool)
    traced = tf.function(gradients, input_signature=shapes, autograph=False)
    for found, expected in zip(traced(x, starts), gradients(x, starts), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_one_key_value_head_of_an_unknown_batch_and_length():
    def attend(query, key):
        return ops.windowed_attention(query, key, key, softmax_kernel(), 3)[0]

    query, key = (normal((2, 23, n, 5), n, dtype="float32") for n in (2, 1))
    shapes = [tf.TensorSpec((None, None, n, 5)) for n in (2, 1)]
    traced = tf.function(attend, input_signature=shapes, autograph=False)
    np.testing.assert_allclose(traced(query, key), attend(query, key), atol=1e-6)


@pytest.mark.parametrize(
    "attend, length",
    [
        (causal, 1),
        (causal, 600),
        (window, 70),
        (bidirectional, 5),
        (bidirectional_window, 70),
        (unpacked, 600),
    ],
)
def test_gradients_of_no_examples_in_a_graph(attend, length):
    """TensorFlow crashes when it optimizes a loop of zero steps."""

    @tf.function(autograph=False)
    def gradients(x):
        starts = tf.zeros((0, length), tf.bool)
        return value_and_gradients(lambda x: attend(x, starts), [x])

    for found in gradients(tf.zeros((0, length, 2, 5))):
        assert found.shape == (0, length, 2, 5)


@pytest.mark.parametrize(
    "batch, length, window, chunk_size",
    [
        (None, 4096, 1, None),
        (None, 4096, 512, 16),
        (1, 4096, 64, 1),
        (1, 4096, 1000, None),
        (1, 320, 300, None),
        (1, 448, 300, None),
        (1, 1500, 600, None),
        (8, 4096, 2048, 16),
        (8, 4096, 512, None),
        (8, 4096, 1000, 1),
    ],
)
def test_blocks_are_padded_by_less_than_a_chunk(batch, length, window, chunk_size):
    found, spec = [], tf.TensorSpec((batch, length, 8, 5))

    @tf.function(input_signature=[spec], autograph=False)
    def plan(x):
        options = Reach(window), chunk_size, (None, None)
        gain = tf.zeros((8, 1))
        found.append(Causal(softmax_kernel(), *options, (x, x, x), gain))

    plan.get_concrete_function()
    (loops,) = found
    count, tokens = loops.blocks.count, loops.blocks.tokens
    most = count * max(loops.chunks, loops.band.chunk)
    assert length <= count * tokens < length + most
    assert tokens % loops.chunks == tokens % loops.band.chunk == 0


@pytest.mark.parametrize(
    "more",
    [
        {"causal": True},
        {"causal": True, "exact_window": 3},
        {"exact_window": 3},
        {"starts": tf.constant([[True, *[False] * 6, True, *[False] * 8]])},
        {"decay": -tf.ones((1, 16, 1))},
    ],
    ids=lambda more: ", ".join(more),
)
def test_chunk_size_applies_to_all_chunks(more, monkeypatch):
    found, forward = [], Causal.forward

    def counting(loops, *state):
        found.append(loops.chunks)
        return forward(loops, *state)

    monkeypatch.setattr(Causal, "forward", counting)
    more = {"causal": False, "starts": None, "exact_window": None, **more}
    visible = ops.Visibility(None, more.pop("causal"), starts=more.pop("starts"))
    x = tf.zeros((1, 16, 1, 5))
    linear_attention(x, x, x, softmax_kernel(), visible, chunk_size=4, **more)
    assert found == [4]


@pytest.mark.parametrize(
    "device, known, unknown, chunk, tokens",
    [
        ("GPU", 1024, 1024, 128, 4096),
        ("TPU", 128, 128, 128, 1024),
        ("CPU", 128, 512, 64, 512),
    ],
)
def test_a_gpu_takes_larger_blocks(device, known, unknown, chunk, tokens, monkeypatch):
    """Tests 16 sequences, 8 heads, 256 features; and an unknown batch size."""
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [kind] * (kind == device)
    )
    assert blocks.tokens_per_block(tf.TensorSpec((16, 1, 8, 1)), 256) == known
    unknown_batch = tf.TensorSpec((None, 1, 8, 1))
    assert blocks.tokens_per_block(unknown_batch, 256) == unknown
    assert blocks.block_sizes().chunk == chunk
    query = tf.zeros((1, 10_000, 1, 8))
    kernel = ops.ExponentialKernel(tf.zeros((256, 8)))
    loops = Causal(kernel, Reach(), None, (None, None), [query] * 3, None)
    assert loops.chunks == tokens // chunk and loops.blocks.tokens <= tokens


def test_a_switch_asks_for_the_highest_precision_of_every_product():
    """The documentation names this switch for float32 products on a TPU."""
    x = tf.zeros((1, 64, 1, 8))
    kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(16, 8, (0, 1)))

    def step(*inputs):
        return value_and_gradients(
            lambda *x: ops.causal_attention(*x, kernel)[0], inputs
        )

    def products():
        compiled = tf.function(step, jit_compile=True, autograph=False)
        program = compiled.experimental_get_compiler_ir(x, x, x)(stage="hlo")
        return re.findall(r"^.* dot\(.*$", program, flags=re.MULTILINE)

    default = products()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        exact = products()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)
    assert len(exact) == len(default) > 10
    assert not any("highest" in product for product in default)
    assert all("operand_precision={highest,highest}" in product for product in exact)
