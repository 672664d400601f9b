"""Promises of `import keras_performer`, each tested in a new process."""

import importlib.machinery
import json
import os
import pathlib
import subprocess
import sys

import pytest

import keras_performer
from keras_performer import _environment


def run_python(*arguments, **environment):
    """Runs Python and returns the finished process, with its output as text."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS")
    }
    # A separate home, so that the user's keras.json has no effect.
    inherited["KERAS_HOME"] = os.path.join(os.getcwd(), "keras_home")
    return subprocess.run(
        [sys.executable, *arguments],
        env=inherited | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def refusal(imports="import keras_performer", **environment):
    """Returns the message of the `ImportError` that `imports` raises."""
    process = run_python("-c", imports, **environment)
    assert process.returncode == 1
    assert process.stdout == ""
    name, sentence = process.stderr.rstrip().splitlines()[-1].split(": ", maxsplit=1)
    assert name == "ImportError"
    return sentence


def test_every_part_is_imported_and_every_name_is_there():
    folder = pathlib.Path(keras_performer.__file__).parent
    for path in folder.glob("*/__init__.py"):
        assert hasattr(keras_performer, path.parent.name)
    for name in keras_performer.__all__:
        assert getattr(keras_performer, name) is not None


def test_missing_tensorflow_names_what_to_install():
    # Python then raises its own error for a missing module.
    sentence = refusal(
        "import sys; sys.modules['tensorflow'] = None\nimport keras_performer.ops"
    )
    assert "needs TensorFlow, which is not installed" in sentence
    for remedy in (".[tensorflow]", ".[cpu]", "tensorflow-tpu"):
        assert remedy in sentence


def test_folder_left_by_an_uninstalled_tensorflow_is_not_tensorflow(monkeypatch):
    left = importlib.machinery.ModuleSpec("tensorflow", None, is_package=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: left)
    with pytest.raises(ImportError, match="needs TensorFlow, which is not installed"):
        _environment.check()


def test_missing_backend_names_the_variable():
    sentence = refusal(KERAS_BACKEND="no_such_backend")
    assert "`import keras` fails (Unable to import backend" in sentence
    assert "set KERAS_BACKEND=tensorflow" in sentence


@pytest.mark.parametrize(
    ("version", "backend"), [("3.15.1", "jax"), ("2.15.0", "tensorflow")]
)
def test_another_keras_is_refused(version, backend, monkeypatch):
    monkeypatch.setattr("keras.__version__", version)
    monkeypatch.setattr("keras.backend.backend", lambda: backend)
    with pytest.raises(
        ImportError, match=f"Received: Keras {version} on {backend}. Set"
    ):
        _environment.check()


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_legacy_keras_is_refused(value, monkeypatch):
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", value)
    with pytest.raises(ImportError, match=f"TF_USE_LEGACY_KERAS={value} .* unset it"):
        _environment.check()


@pytest.mark.slow
def test_import_has_no_side_effects(tmp_path):
    # KERAS_BACKEND overrides the file, and TensorFlow ignores a legacy value of "0".
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    process = run_python(
        "-c",
        SIDE_EFFECTS,
        KERAS_HOME=str(tmp_path),
        KERAS_BACKEND="tensorflow",
        TF_USE_LEGACY_KERAS="0",
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "before\nafter\n"
    # TensorFlow may print while it loads; nothing may print afterwards.
    assert process.stderr.endswith("before\nafter\n"), process.stderr


SIDE_EFFECTS = """
import os, random, sys, warnings
import keras, numpy, tensorflow as tf

def global_state():
    return {
        "environment": dict(os.environ),
        "floatx": keras.config.floatx(),
        "dtype policy": keras.config.dtype_policy().name,
        "XLA": tf.config.optimizer.get_jit(),
        "eager functions": tf.config.functions_run_eagerly(),
        "soft placement": tf.config.get_soft_device_placement(),
        "random": random.getstate(),
        "NumPy's random": str(numpy.random.get_state()),
        "warning filters": list(warnings.filters),
    }

def say(word):
    print(word, flush=True)
    print(word, file=sys.stderr, flush=True)

state = global_state()
say("before")
import keras_performer
say("after")
changed = [name for name, value in global_state().items() if value != state[name]]
assert not changed, changed

unwanted = {"official", "tensorflow_probability", "tf_keras"} & set(sys.modules)
assert not unwanted, unwanted

for name in "PerformerAttention", "PerformerLM", "RedrawFeatures", "SoftmaxFeatures":
    assert keras.saving.get_registered_object("keras_performer>" + name), name
assert keras.saving.get_registered_object("keras_performer>LongformerAttention")

# Raises if a device has been started.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(2)],
)
assert len(tf.config.list_logical_devices("CPU")) == 2
"""
