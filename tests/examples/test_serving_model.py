"""Exported models of this package, served where it is not installed."""

import asyncio
import http.client
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from examples.serving import vocabulary
from examples.serving.batching import Batch, Session
from examples.serving.model import ExportedModel
from examples.serving.sampling import Sampler
from tests.ports import free_ports

ROOT = pathlib.Path(__file__).parents[2]

# As `python -m examples.serving`, where neither this package nor Keras is installed.
STRANGER = """
import runpy, sys

sys.modules["keras_performer"] = sys.modules["keras"] = None  # cannot be imported
runpy.run_module("examples.serving", run_name="__main__", alter_sys=True)
"""


PROMPTS = [b"one", b"two", b"three", b"a longer prompt"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model of bytes, its folder, and the likeliest bytes after each prompt."""
    model = keras_performer.PerformerLM(
        vocabulary_size=256,
        max_length=60,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        num_random_features=6,
        seed=1,
    )
    folder = tmp_path_factory.mktemp("exported") / "text"
    model.export(folder, verbose=False)
    vocabulary.write(folder, vocabulary.Text())
    texts = keras_performer.generate(model, PROMPTS, 61, temperature=0, verbose=0)
    return model, folder, texts


@pytest.mark.slow
def test_waiting_sessions_step_together_with_states_of_one_size(exported):
    model, folder, texts = exported
    batch = Batch(ExportedModel(folder))
    lengths = [30, 20, 5, 12]
    sessions = [
        Session(list(prompt), Sampler(0), length, seconds=600)
        for prompt, length in zip(PROMPTS, lengths)
    ]
    of_one = sum(
        np.asarray(x).nbytes for x in tf.nest.flatten(model.get_initial_state(1))
    )
    sizes = []

    async def tokens_of(session):
        return [token async for token in session]

    async def run():
        decode = batch.model.decode

        def measured(tokens, state):
            size = sum(entry.numpy().nbytes for entry in state.values())
            sizes.append(size / len(tokens))
            return decode(tokens, state)

        batch.model.decode = measured
        for session in sessions:
            batch.add(session)
        work = asyncio.create_task(batch.run())
        found = await asyncio.gather(*map(tokens_of, sessions))
        work.cancel()
        return found

    found = asyncio.run(run())
    for prompt, length, tokens, text in zip(PROMPTS, lengths, found, texts):
        assert prompt + bytes(tokens) == text[: len(prompt) + length]
    assert batch.tokens == sum(lengths)
    # the first two prompts are read together, then each with a step: the longest
    # session, which is one of the first, needs as many as alone
    assert batch.steps == len(sizes) == max(lengths) - 1
    assert set(sizes) == {of_one}


def ask(port, body=None, path="/generate"):
    """The answer of a server on this machine, before it is read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    method = "GET" if body is None else "POST"
    connection.request(method, path, json.dumps(body), {"Connection": "close"})
    return connection.getresponse()  # closes the connection when it is closed


@pytest.mark.slow
def test_the_command_serves_without_this_package_and_survives_who_leaves(exported):
    _, folder, (expected, *_) = exported
    (port,) = free_ports(1)
    command = ["-c", STRANGER, folder, "--port", port]
    command += ["--limits.seconds", 500, "--limits.max_new_tokens", 10**9]
    server = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed = ""
        while "Uvicorn running on" not in printed:
            line = server.stdout.readline()
            printed += line
            assert line, printed  # it has ended
        # if it went on, it would fail after 60 tokens, and the log would say so
        leaving = ask(port, {"text": "two"})
        leaving.readline()
        leaving.close()
        asked = {"text": "one", "temperature": 0, "max_new_tokens": 58}
        with ask(port, asked) as answer:
            lines = answer.read().decode().split("\n\n")[:-1]
        *events, last = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert b"one" + bytes(event["token"] for event in events) == expected
        assert last["end"] == "length"
        written = "".join(event["text"] for event in [*events, last])
        assert "one" + written == expected.decode(errors="replace")
        deadline = time.monotonic() + 60
        sessions = 1
        while sessions:
            assert time.monotonic() < deadline
            with ask(port, path="/status") as answer:
                sessions = json.load(answer)["sessions"]
        with ask(port, path="/") as page:
            assert page.read() == (ROOT / "examples/serving/page.html").read_bytes()
    finally:
        server.terminate()
        rest, _ = server.communicate(timeout=60)
    assert "Traceback" not in printed + rest


def test_a_folder_without_the_signatures_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must hold a SavedModel.*Received: 'nothing'"):
        ExportedModel("nothing")
    tf.saved_model.save(tf.Module(), "other")
    with pytest.raises(ValueError, match="signatures prefill and decode.*Received: "):
        ExportedModel("other")
