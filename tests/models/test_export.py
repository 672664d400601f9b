"""The three signatures of an exported model work without this package."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from keras_performer.models import exported
from tests.layers.inputs import language_model

IDS = np.random.default_rng(0).integers(0, 11, (3, 17)).astype("int32")
PROMPT = 5


def with_every_state():
    """Returns a model with a window, convolutions, positions, and one block without."""
    attention = keras_performer.PerformerAttention(
        2, 4, num_random_features=6, causal=True, exact_window=3, seed=2
    )
    return language_model(
        max_length=17,
        num_layers=2,
        attention=[attention, "none"],
        conv_kernel_size=3,
        position_embedding="learned",
    )


# Code that only needs TensorFlow and the names of signatures.
STRANGER = """
import sys

sys.modules["keras_performer"] = None  # cannot be imported
import numpy as np
import tensorflow as tf

ids = np.load("ids.npy")
prompt = int(sys.argv[1])
loaded = tf.saved_model.load("model")
found = {}
signatures = loaded.signatures
(found["serve"],) = signatures["serve"](tf.constant(ids)).values()
(found["default"],) = signatures["serving_default"](tf.constant(ids)).values()
decode = signatures["decode"]
found["given"] = sorted(decode.structured_input_signature[1])
found["returned"] = sorted(decode.structured_outputs)
for rows in (1, len(ids)):
    tokens = tf.constant(ids[:rows])
    state = dict(signatures["prefill"](tokens=tokens[:, :prompt]))
    logits, sizes = [state.pop("logits")], []
    for t in range(prompt, tokens.shape[1]):
        sizes.append(sum(x.numpy().nbytes for x in state.values()))
        state = dict(decode(tokens=tokens[:, t : t + 1], **state))
        logits.append(state.pop("logits"))
    found[f"step_by_step_{rows}"] = np.stack(logits, axis=1)
    found[f"bytes_{rows}"] = sizes
np.savez("found.npz", **{k: np.asarray(v) for k, v in found.items()})
"""


@pytest.mark.slow
def test_an_exported_model_runs_where_this_package_is_not(tmp_path):
    model = with_every_state()
    np.save(tmp_path / "ids.npy", IDS)
    model.export(tmp_path / "model", verbose=False)
    subprocess.run(
        [sys.executable, "-c", STRANGER, str(PROMPT)],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        check=True,
    )
    found, expected = np.load(tmp_path / "found.npz"), model(IDS)
    for endpoint in ("serve", "default"):
        np.testing.assert_allclose(found[endpoint], expected, atol=1e-5)
    state = model.get_initial_state(1)
    names = exported.state_names(state)
    assert found["given"].tolist() == sorted(["tokens", *names])
    assert found["returned"].tolist() == sorted(["logits", *names])
    size = sum(np.asarray(x).nbytes for x in tf.nest.flatten(state))
    for rows in (1, len(IDS)):
        np.testing.assert_allclose(
            found[f"step_by_step_{rows}"], expected[:rows, PROMPT - 1 :], atol=1e-5
        )
        # the bytes for a sequence do not grow with its position
        np.testing.assert_array_equal(found[f"bytes_{rows}"], rows * size)


def test_a_model_without_a_state_has_the_forward_pass_alone():
    assert not exported.has_state(language_model(causal=False))
    model = language_model(max_length=17, attention="exact")
    model.export("model", verbose=False)
    signatures = tf.saved_model.load("model").signatures
    assert {*signatures} == {"serve", "serving_default"}
    (outputs,) = signatures["serve"](tf.constant(IDS)).values()
    np.testing.assert_allclose(outputs, model(IDS), atol=1e-5)


def test_names_are_paths_in_the_order_of_the_state():
    state = {"position": 1, "blocks": [{"b": 2, "a": (3, 4)}, ()], "embedding": ()}
    names = exported.state_names(state)
    assert dict(zip(names, tf.nest.flatten(state))) == {
        "state_position": 1,
        "state_blocks_0_b": 2,
        "state_blocks_0_a_0": 3,
        "state_blocks_0_a_1": 4,
    }


@pytest.mark.parametrize(
    "state, named",
    [({"a": {"b": 1}, "a_b": 2}, "state_a_b"), ({"a/b": 1}, "state_a/b")],
)
def test_names_that_signatures_cannot_have_raise(state, named):
    with pytest.raises(ValueError, match=f"rename them.*Received: .*{named}"):
        exported.state_names(state)
