"""Exported models of this package, and a service that runs without it."""

import http.client
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from examples import digits
from examples.serving import train, vocabulary
from examples.serving.model import ExportedModel
from tests.ports import free_ports

ROOT = pathlib.Path(__file__).parents[2]
# Runs `python -m examples.serving` without this package and Keras.
STRANGER = """
import runpy, sys

sys.modules["keras_performer"] = sys.modules["keras"] = None  # cannot be imported
runpy.run_module("examples.serving", run_name="__main__", alter_sys=True)
"""


def ask(port, body=None, path="/generate"):
    """Returns the answer of a server on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    method = "GET" if body is None else "POST"
    connection.request(method, path, json.dumps(body), {"Connection": "close"})
    with connection.getresponse() as answer:  # its end closes the connection
        return answer.read()


@pytest.mark.slow
def test_the_command_serves_without_this_package(tmp_path):
    model = keras_performer.PerformerLM(
        vocabulary_size=256,
        max_length=60,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        num_random_features=6,
        seed=1,
    )
    folder = tmp_path / "text"
    model.export(folder, verbose=False)
    vocabulary.write(folder, vocabulary.Text())
    whole = keras_performer.generate(model, b"one", 61, temperature=0, verbose=0)
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
            assert line, printed  # empty if the server has ended
        asked = {"text": "one", "temperature": 0, "max_new_tokens": 58}
        lines = ask(port, asked).decode().split("\n\n")[:-1]
        *events, last = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert b"one" + bytes(event["token"] for event in events) == whole
        assert last["end"] == "length"
        written = "".join(event["text"] for event in [*events, last])
        assert "one" + written == whole.decode(errors="replace")
        page = (ROOT / "examples/serving/page.html").read_bytes()
        assert ask(port, path="/") == page
    finally:
        server.terminate()
        rest, _ = server.communicate(timeout=60)
    assert "Traceback" not in printed + rest


def test_a_folder_without_the_signatures_is_refused():
    with pytest.raises(ValueError, match="must hold a SavedModel.*Received: 'nothing'"):
        ExportedModel("nothing")
    tf.saved_model.save(tf.Module(), "other")
    with pytest.raises(ValueError, match="signatures prefill and decode.*Received: "):
        ExportedModel("other")


def test_digits_are_pixels_from_paper_to_ink(monkeypatch):
    made_up = np.tile(np.linspace(0, 255, 784), (40, 1)), np.zeros(40)
    monkeypatch.setattr(digits, "mnist_data", lambda: made_up)
    model = mock.Mock()
    monkeypatch.setattr(digits, "make_model", lambda *args, **options: model)
    train.train_digits(steps=2, folder="b")
    inputs, targets = model.fit.call_args.args
    assert inputs.shape == targets.shape == (64, 196)
    assert (inputs[:, 0] == 8).all() and targets.max() == 7
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    found = vocabulary.read("b")
    sizes = found.width, found.height, found.start, found.max_length
    assert sizes == (14, 14, [8], 197)
    # seven steps from white to the black of the example's picture
    greys = [int(color[1:3], 16) for color in found.palette]
    np.testing.assert_allclose(greys, np.linspace(255, 0x1A, 8), atol=0.5)
    assert found.palette == [f"#{bytes([grey] * 3).hex()}" for grey in greys]


def test_ids_are_all_that_is_known_without_a_file(tmp_path):
    assert vocabulary.read(tmp_path) == vocabulary.Tokens()
    vocabulary.write(tmp_path, vocabulary.Pixels(width=1, height=1, palette=[]))
    path = tmp_path / vocabulary.FILE
    path.write_text(path.read_text().replace("pixels", "sounds"))
    with pytest.raises(ValueError, match="sounds"):
        vocabulary.read(tmp_path)


def test_tokens_that_a_model_has_not_can_mean_nothing():
    vocabulary.check(vocabulary.Text(start=[255]), 256)
    with pytest.raises(ValueError, match="256 bytes.*Received: a vocabulary of 13"):
        vocabulary.check(vocabulary.Text(), 13)
    with pytest.raises(ValueError, match="at least 0 and less than 13. Received: 13"):
        vocabulary.check(vocabulary.Tokens(start=[12, 13]), 13)
