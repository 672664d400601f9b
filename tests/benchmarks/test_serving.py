"""The load test of the service: its contender, its clients, its numbers."""

import asyncio
import json
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from benchmarks.serving import __main__ as serving
from benchmarks.serving import client
from benchmarks.serving.models import ExactWithCache
from tests.contract import relative_error


def test_a_cache_gives_what_the_whole_sequence_gives():
    """Also to rows that are at different places, as sessions are."""
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
    # prompts of 4 and 7 tokens, then 3 at once, then one by one
    starts = 4, 7
    states = [
        cached(x[row : row + 1, :start], return_state=True)[1]
        for row, start in enumerate(starts)
    ]
    state = tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *states)
    done = np.array(starts)
    for count in (3, 1, 1, 1):
        new, wanted = (
            tf.stack([y[row, at : at + count] for row, at in enumerate(done)])
            for y in (x, expected)
        )
        actual, state = cached(new, state=state, return_state=True)
        assert relative_error(actual, wanted) < 1e-5
        done += count
    assert state["attention"]["length"].numpy().tolist() == [10, 13]


def test_latency_and_speed():
    # one session waits 2 s, then has a token each 0.1 s; the other ends last
    steady = 10.0, [12.0, 12.1, 12.2, 12.3]
    held_up = 10.5, [11.0, 11.5, 12.5]
    found = serving.summary([steady, held_up])
    assert found["tokens_per_second"] == pytest.approx(7 / 2.5)
    # of 0.1, 0.1, 0.1, 0.5 and 1 s the middle, and 96 % of the way to the last
    assert found["between_p50"] == pytest.approx(0.1)
    assert found["between_p99"] == pytest.approx(0.5 + 0.96 * 0.5)
    assert found["first_p50"] == pytest.approx(1.25)
    assert found["first_p99"] == pytest.approx(0.5 + 0.99 * 1.5)


@pytest.fixture
def port():
    """A service that says one token for each that is asked for, at most three."""
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), []

    async def answer(reader, writer):
        header = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(header.split("content-length: ")[1].split("\r\n")[0])
        asked = json.loads(await reader.readexactly(length))
        events = [{"token": 5}] * min(3, asked["max_new_tokens"]) + [{"end": "time"}]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            line = f"data: {json.dumps(event)}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))
        writer.write(b"0\r\n\r\n")
        writer.close()

    async def serve():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        found.append(server.sockets[0].getsockname()[1])
        ready.set()
        return server

    def run():
        server = loop.run_until_complete(serve())
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
    times, answer = client.drive(port, [[1], [2], [3]], 2, lambda: calls.append(1))
    assert calls == [1] and answer is None
    assert [len(arrivals) for _, arrivals in times] == [2, 2, 2]
    for sent, arrivals in times:
        assert sent < arrivals[0] <= arrivals[1]


def test_a_session_that_ends_early_is_an_error(port):
    with pytest.raises(RuntimeError, match='Received: 3 tokens, and .*200 OK.*"time"'):
        client.drive(port, [[1]], 4, lambda: None)
