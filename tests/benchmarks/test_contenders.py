"""Layers that we measure ours against, and readers of programs and numbers."""

import asyncio
import importlib
import json
import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from benchmarks import precision, turns
from benchmarks.contenders import ours
from benchmarks.learning.alibi import AlibiExact, AlibiLocal, AlibiPerformer
from benchmarks.peers import cases, numbers
from benchmarks.serving import __main__ as serving
from benchmarks.serving import client
from benchmarks.serving.models import ExactWithCache
from benchmarks.tpu import checks, rows
from keras_performer import ops
from keras_performer.zoo.big_bird import NONE
from tests.contract import relative_error
from tests.layers.inputs import normal

OF_KERAS = [c for c in cases.COMPARISONS if c["environment"] == "ours"]
HAS_WINDOW = hasattr(keras.layers.MultiHeadAttention, "_compute_sliding_window_mask")
DISTANCE = np.arange(7)[:, None] - np.arange(7)


class Here:
    """Replacement for a pool, which runs programs in this process."""

    def ask(self, environment, do, name, case):
        module = turns.ENVIRONMENTS[environment][0]
        module = importlib.import_module(f"benchmarks.{module}")
        for function in module.program(json.loads(json.dumps(case))):
            function()


@pytest.mark.skipif(not HAS_WINDOW, reason="This Keras has no sliding_window.")
def test_a_comparison_with_keras_comes_out_as_expected():
    row = numbers.compare(OF_KERAS[-3], Here())
    assert numbers.is_expected(row) and row["largest_output"] > 1
    for changed, verdict in (
        ({}, "differ"),
        ({"gradient": 1e-6, "output": 1e-6}, "agree"),
        ({"gradient": float("nan"), "output": 1e-6}, "differ"),
        ({"reason": "theirs: Error: no"}, "fails"),
    ):
        assert numbers.verdict(row | changed) == verdict
    failed = {"reason": "ours: Error: no", "expected": "fails", "because": None}
    assert not numbers.is_expected(failed)


def test_a_side_has_the_drawn_weights_and_hides_padding(tmp_path):
    case = json.loads(json.dumps(OF_KERAS[0]["ours"])) | {"padding": [3, 14]}
    case["options"]["sliding_window"] = 1  # each token sees only its own value
    case |= {name: str(tmp_path / f"{name}.npz") for name in ("inputs", "outputs")}
    drawn = numbers.drawn(case)
    hidden = ~drawn["seen"]
    assert hidden.sum(1).tolist() == [3, 14] and hidden[:, -3:].all()
    assert not drawn["cotangent"][hidden].any() and drawn["cotangent"][~hidden].all()
    np.savez(case["inputs"], **drawn)
    Here().ask("ours", "make", "numbers", case)
    found = np.load(case["outputs"])
    value = np.einsum("btd,dnh->btnh", drawn["x"], drawn["value/kernel"])
    value += drawn["value/bias"]
    output = np.einsum("btnh,nhd->btd", value, drawn["attention_output/kernel"])
    output += drawn["attention_output/bias"]
    np.testing.assert_allclose(found["output"][~hidden], output[~hidden], atol=1e-5)
    right = drawn["cotangent"].sum((0, 1))
    np.testing.assert_allclose(found["d attention_output/bias"], right, atol=1e-4)


def test_differences_by_hand():
    seen = np.array([[True, False]])
    theirs = {"output": np.array([[[2.0, -4.0], [1.0, 1.0]]])}
    theirs |= {"d x": np.array([10.0, -20.0]), "d bias": np.array([1e-9])}
    ours = {"output": np.array([[[2.0, -3.5], [9.0, 9.0]]])}
    ours |= {"d x": np.array([11.0, -20.0]), "d bias": np.array([0.5])}
    # the small gradient of bias is compared with a tenth of the gradient of x
    found = numbers.differences(ours, theirs, seen)
    assert (found["output"], found["largest_output"]) == (0.5, 4.0)
    assert found["gradient"] == pytest.approx(0.25)
    assert found["worst_gradient"] == "d bias"
    ours["d x"] = np.array([np.nan, -20.0])
    assert np.isnan(numbers.differences(ours, theirs, seen)["gradient"])
    with pytest.raises(ValueError, match="same gradients"):
        numbers.differences({**ours, "d more": 0}, theirs, seen)


@pytest.mark.parametrize(
    "each_once, last",
    [(False, [0, 3, 3, 4, 5, 5]), (True, [0, 3, 4, 5])],
)
def test_their_random_blocks_are_in_our_table(each_once, last):
    # random blocks of blocks 1 to 4 of 6: new; itself; one twice; last and a neighbour
    blocks = np.array([[[3, 4], [2, 4], [1, 1], [5, 3]]])
    table, all_seeing = ours.seen_blocks(blocks, each_once)
    assert set(all_seeing.numpy().tolist()) == {0, 5}
    seen = [sorted(row[row != NONE].tolist()) for row in table[0].numpy()]
    assert seen[1] == [0, 1, 2, 3, 4, 5] and seen[4] == last
    again = numbers.about(blocks)
    assert (again["again"], again["entries"], again["largest"]) == (4, 8, 5)


@pytest.mark.parametrize("contender", ["softmax", "key-value cache"])
def test_modes_decode_the_same(contender):
    case = {"contender": contender, "part": "decoding", "position": 5, "batch": 2}
    by_graph, by_xla = (
        ours.program({**case, "tokens": 3, "mode": mode})[1]()
        for mode in ("graph", "xla")
    )
    np.testing.assert_allclose(by_graph, by_xla, atol=1e-5)
    assert np.abs(by_graph).max() > 0.01


@pytest.mark.parametrize("xla", [False, True])
def test_the_cache_is_seen_up_to_the_token(xla):
    decode_token, state = ours.cached(3, length=8, batch=2, xla=xla)
    token = tf.random.stateless_normal((2, 1, 512), seed=(0, 1))

    def decoded(place, *changed):
        """Decodes a token after a change of these rows in each head's cache."""
        rows = np.isin(np.arange(8), changed)[:, np.newaxis]
        caches = [np.reshape(x, (-1, 8, 64)) for x in state]
        caches = [np.where(rows, x + 3, x).reshape(-1, 64) for x in caches]
        step = tf.function(lambda *caches: decode_token(place - 3, token, caches)[0])
        return step(*map(tf.constant, caches))

    # the token writes its own row; the first token sees only that row
    np.testing.assert_array_equal(decoded(6), decoded(6, 6, 7))
    np.testing.assert_array_equal(decoded(0), decoded(0, *range(8)))
    for row in (0, 5):
        assert np.abs(decoded(6) - decoded(6, row)).max() > 0.01


def test_generated_tokens_have_their_shape():
    sizes = dict(vocabulary_size=11, num_layers=1, num_heads=1, hidden_dim=8)
    case = dict(part="generate", prompt_length=3, new_tokens=4, batch=2, sizes=sizes)
    ours.program(case)[1]()  # it checks the shape of its tokens


def test_a_cache_gives_what_the_whole_sequence_gives():
    """Rows may be at different positions, like sessions of a service."""
    keras.utils.set_random_seed(1)
    options = dict(num_heads=4, key_dim=6, value_dim=5)
    cached = ExactWithCache(**options, cache_length=13, rotary=True)
    exact = keras_performer.layers.ExactAttention(**options, causal=True, rotary=True)
    x = keras.random.normal((2, 13, 7), seed=3)
    exact.build(x.shape)
    cached.build(x.shape)
    cached.set_weights(exact.get_weights())
    expected = exact(x)
    assert relative_error(cached(x), expected) < 1e-6
    # prompts of 4 and 7 tokens, then 3 tokens at once, then one by one
    done = np.array([4, 7])
    states = [
        cached(x[row : row + 1, :start], return_state=True)[1]
        for row, start in enumerate(done)
    ]
    state = tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *states)
    for count in (3, 1, 1):
        new, wanted = (
            tf.stack([y[row, at : at + count] for row, at in enumerate(done)])
            for y in (x, expected)
        )
        actual, state = cached(new, state=state, return_state=True)
        assert relative_error(actual, wanted) < 1e-5
        done += count
    assert state["attention"]["length"].numpy().tolist() == [9, 12]


def test_latency_and_speed():
    # one session waits 2 s, then gets a token every 0.1 s; the other ends last
    steady = 10.0, [12.0, 12.1, 12.2, 12.3]
    held_up = 10.5, [11.0, 11.5, 12.5]
    found = serving.summary([steady, held_up])
    assert found["tokens_per_second"] == pytest.approx(7 / 2.5)
    # from 0.1, 0.1, 0.1, 0.5 and 1 s: the middle, and 96 % of the way to the last
    assert found["between_p50"] == pytest.approx(0.1)
    assert found["between_p99"] == pytest.approx(0.5 + 0.96 * 0.5)
    assert found["first_p50"] == pytest.approx(1.25)
    assert found["first_p99"] == pytest.approx(0.5 + 0.99 * 1.5)


@pytest.fixture
def port():
    """Starts a service that sends the requested number of tokens, at most three."""
    loop, found = asyncio.new_event_loop(), []
    ready = threading.Event()

    async def answer(reader, writer):
        header = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(header.split("content-length: ")[1].split("\r\n")[0])
        asked = json.loads(await reader.readexactly(length))
        events = [{"token": 5}] * min(3, asked["max_new_tokens"]) + [{"end": "time"}]
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for event in events:
            writer.write(f"data: {json.dumps(event)}\n\n".encode())
        writer.close()

    def run():
        server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
        found.append(server.sockets[0].getsockname()[1])
        ready.set()
        loop.run_forever()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    yield found[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_clients_note_when_each_token_came_and_when_all_have_begun(port):
    calls = []
    times, _ = client.drive(port, [[1], [2], [3]], 2, lambda: calls.append(1))
    assert calls == [1]
    for sent, arrivals in times:
        assert sent < arrivals[0] <= arrivals[1] and len(arrivals) == 2
    with pytest.raises(RuntimeError, match='Received: 3 tokens, and .*200 OK.*"time"'):
        client.drive(port, [[1]], 4, lambda: None)


@pytest.mark.parametrize("kind", ["exact", "local", "features", "window"])
def test_weights_fall_with_the_distance_by_the_slopes_of_the_alibi_paper(kind):
    window = 7 if kind in ("exact", "features") else 3
    options = dict(num_heads=8, key_dim=4, causal=True)
    near = {"exact_window": window if kind == "window" else None}
    layer = {
        "exact": lambda: AlibiExact(**options),
        "local": lambda: AlibiLocal(**options, sliding_window=window),
    }.get(
        kind, lambda: AlibiPerformer(**options, **near, num_random_features=6, seed=0)
    )()
    layer.build((2, 7, 5))
    given = [normal((2, 7, 8, 4), seed) for seed in range(3)]
    inputs, cotangent = [tf.Variable(x) for x in given], normal((2, 7, 8, 4), 3)
    with tf.GradientTape() as tape:
        found, _ = layer.attend(*inputs, ops.Visibility(causal=True))
        loss = tf.reduce_sum(found * cotangent)

    def attended(query, key, value):
        x, y = query / 2**0.5, key / 2**0.5
        logs = exact = np.einsum("btnh,bsnh->bnts", x, y)
        if kind in ("features", "window"):
            matrix = layer.projection_matrix.numpy()
            features = [
                np.exp(z @ matrix.T - np.sum(z**2, -1, keepdims=True) / 2)
                for z in (x, y)
            ]
            logs = np.log(np.einsum("btnm,bsnm->bnts", *features) / len(matrix))
            logs = (
                np.where(DISTANCE < window, exact, logs) if kind == "window" else logs
            )
        # slopes of 8 heads: 1/2, 1/4, ... 1/256
        weights = np.exp(logs - 0.5 ** np.arange(1, 9)[:, None, None] * DISTANCE)
        weights *= (DISTANCE >= 0) & ((DISTANCE < window) | (kind == "window"))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("bnts,bsnv->btnv", weights, value)

    np.testing.assert_allclose(found, attended(*given), atol=1e-5)
    given = [np.float64(x) for x in given]
    for index, gradient in enumerate(tape.gradient(loss, inputs)):
        direction, ends = normal((2, 7, 8, 4), 9, dtype="float64"), []
        for step in (1e-5, -1e-5):
            moved = list(given)
            moved[index] = moved[index] + step * direction
            ends.append(np.sum(attended(*moved) * cotangent))
        slope = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=1e-3)


@pytest.mark.parametrize(
    ("which", "expected"),
    [("none", (1, 1)), ("projection", (0, 1)), ("others", (1, 0)), ("all", (0, 0))],
)
def test_both_factors_are_rounded_where_they_should_be(which, expected):
    x = [1 + 2**-7, 1 + 2**-9, -3 - 2**-5]
    rounded = precision.bfloat16(tf.constant(x, tf.float32))
    np.testing.assert_array_equal(rounded, [1 + 2**-7, 1, -3 - 2**-5])
    one, tiny = tf.ones((1, 1)), tf.fill((1, 1), tf.constant(2.0**-9))
    with precision.rounded_products(which):
        flat = [tf.matmul(1 + tiny, one) - 1, tf.matmul(one, 1 + tiny) - 1]
        batched = [tf.matmul((1 + tiny)[None], one[None]) - 1]
    assert [float(x[0, 0]) * 2**9 for x in flat] == [expected[0]] * 2
    assert float(batched[0][0, 0, 0]) * 2**9 == expected[1]


def test_switch_asks_for_the_highest_precision_of_every_product():
    """The documentation names this switch for float32 products on a TPU."""
    x = tf.zeros((1, 64, 1, 8))
    kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(16, 8, (0, 1)))

    def gradients(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch((query, key, value))
            output, _ = ops.causal_attention(query, key, value, kernel)
        return tape.gradient(output, (query, key, value))

    def products():
        compiled = tf.function(gradients, jit_compile=True, autograph=False)
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


SENTENCES = {
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (34.19G) exceeds available HBM (15.75G).": 34.19,
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
    "space hbm. Used 1.50T of 15.75G hbm. Exceeded hbm capacity by 1.48T.": 1536.0,
    "RESOURCE_EXHAUSTED: for another reason": None,
}
LOWERED = """
  func.func @main(%arg0: tensor<1x8xi32>, %arg1: tensor<2x3xf32>, %arg2: tensor<2x3xf32>
 {mhlo.x = 1}) -> (tensor<2x3xf32>) {
    %1 = stablehlo.dot_general %a, %b, dims = [1] x [0] : (tensor<4x2xbf16>, tensor<2xbf16>) -> tensor<4xbf16>
    %2 = stablehlo.dot %a, %b : (tensor<4x2xf32>, tensor<2xbf16>) -> tensor<4xf32>
    %6 = stablehlo.dot %a, %b, precision = [DEFAULT, DEFAULT] : (tensor<4x2xbf16>, tensor<2xbf16>) -> tensor<4xbf16>
    %3:2 = stablehlo.while(%iterArg = %1) : tensor<i32>
    %4 = stablehlo.convert %2 : (tensor<4xf32>) -> tensor<4xf64>
    %5 = stablehlo.constant dense<1.0> : tensor<f64>
"""  # noqa: E501
COMPILED = """
  %a.1 = bf16[4,2]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[2]{0} parameter(1)
  %c = f32[2]{0} parameter(2)
  %convolution.1 = f32[4]{0} convolution(%a.1, %b), window={}, dim_labels=bf_io->bf
  %dot.3 = f32[] dot(%c, %c), lhs_contracting_dims={0}
  ROOT %dot.2 = f32[4]{0} dot(%a.1, %c), lhs_contracting_dims={1}
  %while.7 = (s32[], f32[4]{0}) while(%tuple), condition=%cond, body=%body
  %all-reduce.1 = (f32[2], f32[4]) all-reduce(%x, %y), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
"""  # noqa: E501


def test_programs_of_the_tpu_compiler_are_read_right():
    assert {s: rows.refused_gib(s) for s in SENTENCES} == SENTENCES
    assert checks.arguments(LOWERED) == {"1x8xi32": 1, "2x3xf32": 2}
    assert checks.bfloat16_products_lowered(LOWERED) == 2
    assert checks.loops_lowered(LOWERED) == 1
    doubles = [line.split()[0] for line in checks.float64_operations(LOWERED)]
    assert doubles == ["%4", "%5"]
    assert checks.bfloat16_products(COMPILED) == 1
    assert checks.loops(COMPILED) == 1
    assert checks.all_reduces(COMPILED) == ["{{0,1},{2,3}}"]
