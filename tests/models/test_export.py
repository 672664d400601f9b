"""The three signatures of an exported model, where this package is not installed."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import keras_performer
from keras_performer.models import exported

pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")

IDS = np.random.default_rng(0).integers(0, 11, (3, 17)).astype("int32")
PROMPT = 5


def small_model(**changes):
    options = dict(
        vocabulary_size=11,
        max_length=17,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        seed=1,
    )
    return keras_performer.PerformerLM(**{**options, **changes})


def with_every_state():
    """A window, a short convolution, a block without attention, learned positions."""
    attention = keras_performer.PerformerAttention(
        2, 4, num_random_features=6, causal=True, exact_window=3, seed=2
    )
    return small_model(
        attention=[attention, "none"],
        conv_kernel_size=3,
        position_embedding="learned",
    )


def converted_and_quantized():
    exact = small_model(attention="exact", num_layers=1)
    model, _ = keras_performer.convert_to_performer(exact, num_random_features=6)
    model.quantize("int8")
    return model


MODELS = {"every_state": with_every_state, "int8": converted_and_quantized}

# All that a stranger needs: TensorFlow, and the names that `saved_model_cli` shows.
STRANGER = """
import sys

sys.modules["keras_performer"] = None  # cannot be imported
import numpy as np
import tensorflow as tf

ids = np.load("ids.npy")
prompt = int(sys.argv[1])
for name in sys.argv[2:]:
    loaded = tf.saved_model.load(name)
    found = {}
    signatures = loaded.signatures
    (found["serve"],) = signatures["serve"](tf.constant(ids)).values()
    (found["default"],) = signatures["serving_default"](tf.constant(ids)).values()
    for rows in (1, len(ids)):
        tokens = tf.constant(ids[:rows])
        state = dict(signatures["prefill"](tokens=tokens[:, :prompt]))
        logits, sizes = [state.pop("logits")], []
        for t in range(prompt, tokens.shape[1]):
            sizes.append(sum(x.numpy().nbytes for x in state.values()))
            state = dict(signatures["decode"](tokens=tokens[:, t : t + 1], **state))
            logits.append(state.pop("logits"))
        found[f"step_by_step_{rows}"] = np.stack(logits, axis=1)
        found[f"bytes_{rows}"] = sizes
    np.savez(f"{name}.npz", **{k: np.asarray(v) for k, v in found.items()})
"""


def export_models(folder):
    """Writes models, and what each gives for `IDS`."""
    np.save(folder / "ids.npy", IDS)
    for name, make in MODELS.items():
        model = make()
        model.export(folder / name, verbose=False)
        np.save(folder / f"{name}_expected.npy", model(IDS))
        states = tf.nest.flatten(model.get_initial_state(1))
        size = sum(np.asarray(state).nbytes for state in states)
        np.save(folder / f"{name}_bytes.npy", size)


def run(folder, *command):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def check_steps_elsewhere_are_the_model_on_the_whole_sequence(folder):
    run(folder, "-c", STRANGER, PROMPT, *MODELS)
    for name in MODELS:
        found = np.load(folder / f"{name}.npz")
        expected = np.load(folder / f"{name}_expected.npy")
        for endpoint in ("serve", "default"):
            np.testing.assert_allclose(found[endpoint], expected, atol=1e-5)
        for rows in (1, len(IDS)):
            np.testing.assert_allclose(
                found[f"step_by_step_{rows}"],
                expected[:rows, PROMPT - 1 :],
                atol=1e-5,
            )
            # what a sequence needs does not grow with its position
            size = rows * np.load(folder / f"{name}_bytes.npy")
            np.testing.assert_array_equal(found[f"bytes_{rows}"], size)


def check_the_command_of_tensorflow_finds_and_runs_the_signatures(folder):
    command = pathlib.Path(sys.executable).parent / "saved_model_cli"
    of_model = ("--dir", "every_state", "--tag_set", "serve")
    shown = run(folder, command, "show", "--dir", "every_state", "--all")
    for signature in ("serve", "serving_default", "prefill", "decode"):
        assert f"signature_def['{signature}']" in shown
    of_decode = shown.split("signature_def['decode']")[1].split("signature_def[")[0]
    given, _, returned = of_decode.partition("outputs[")
    out, expected = folder / "out", np.load(folder / "every_state_expected.npy")
    np.save(folder / "prompt.npy", IDS[:2, :7])
    np.save(folder / "next.npy", IDS[:2, 7:8])

    def check(signature, inputs, position):
        chosen = ("--signature_def", signature, "--outdir", "out", "--overwrite")
        inputs = "--inputs", ";".join(f"{name}={file}" for name, file in inputs.items())
        run(folder, command, "run", *of_model, *chosen, *inputs)
        logits = np.load(out / "logits.npy")
        np.testing.assert_allclose(logits, expected[:2, position - 1], atol=1e-5)
        np.testing.assert_array_equal(np.load(out / "state_position.npy"), position)

    check("prefill", {"tokens": "prompt.npy"}, 7)
    state = {file.stem: file for file in out.glob("state_*.npy")}
    check("decode", {"tokens": "next.npy", **state}, 8)
    for entry in state:
        assert f"'{entry}'" in given and f"'{entry}'" in returned


@pytest.mark.slow
def test_exported_models_run_where_this_package_is_not(tmp_path):
    """One test: of two, each might run in a process that exports for itself."""
    export_models(tmp_path)
    check_steps_elsewhere_are_the_model_on_the_whole_sequence(tmp_path)
    check_the_command_of_tensorflow_finds_and_runs_the_signatures(tmp_path)


@pytest.mark.parametrize("changes", [dict(attention="exact"), dict(causal=False)])
def test_models_that_have_no_state(changes):
    assert not exported.has_state(small_model(num_layers=1, **changes))


def test_a_model_without_a_state_has_the_forward_pass_alone():
    model = small_model(num_layers=1, attention="exact")
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
