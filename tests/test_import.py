"""What `import keras_performer` promises, each promise in a fresh Python."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import keras_performer

IMPORT = "from keras_performer import PerformerAttention"
USES = [
    IMPORT,
    "import keras_performer; keras_performer.PerformerLM",
    "import keras_performer; keras_performer.models",
    "from keras_performer import ops",
    "import keras_performer.layers",
    "from keras_performer.feature_maps import softmax",
]


def run_python(code, **environment):
    """Runs `code` and returns the finished process, its two streams as text."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in ("KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS")
    }
    # A home of its own: a keras.json of whoever runs the tests must not decide them.
    inherited["KERAS_HOME"] = os.path.join(os.getcwd(), "keras_home")
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def refusal(code, **environment):
    """Returns the one sentence of the `ImportError` in which `code` ends."""
    process = run_python(code, **environment)
    assert process.returncode == 1
    assert process.stdout == ""
    *traceback, error = process.stderr.rstrip().splitlines()
    assert [line for line in traceback if not line.startswith("  ")] == [
        "Traceback (most recent call last):"
    ], process.stderr
    name, sentence = error.split(": ", maxsplit=1)
    assert name == "ImportError"
    return sentence


def test_nothing_is_loaded_before_it_is_needed():
    # as the preflight must run where neither can be imported
    process = run_python(
        "import sys; sys.modules['tensorflow'] = sys.modules['keras.src'] = None\n"
        "import keras_performer, keras_performer.preflight\n"
        "assert keras_performer.__version__\n"
        "assert 'PerformerAttention' in dir(keras_performer)\n"
        "assert not hasattr(keras_performer, 'no_such_thing')\n"
        "assert 'keras' not in sys.modules"
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("use", USES)
def test_every_use_is_refused_in_one_sentence(use):
    assert "needs Keras 3" in refusal(use, TF_USE_LEGACY_KERAS="1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        # to look whether there is a Keras is not to import it
        "import importlib.util, keras_performer\n"
        "assert importlib.util.find_spec('keras')\n"
        "assert importlib.util.find_spec('keras_performer.layers')\n"
        "from keras.saving import get_registered_object",
        "import keras_performer.layers",
    ],
)
def test_everything_is_registered_by_any_import(imports):
    process = run_python(imports + REGISTERED)
    assert process.returncode == 0, process.stderr


def test_keras_with_another_backend_is_left_alone():
    stand_in = (
        "import sys, importlib.machinery, importlib.util\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'keras':\n"
        "            return importlib.util.spec_from_loader(name, self)\n"
        "    def create_module(self, spec): return None\n"
        "    def exec_module(self, module): module.mine = True\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import keras_performer\n"
        "import keras\n"
        "assert keras.mine and 'tensorflow' not in sys.modules\n"
    )
    process = run_python(stand_in, KERAS_BACKEND="jax")
    assert process.returncode == 0, process.stderr
    sentence = refusal(stand_in + "keras_performer.ops", KERAS_BACKEND="jax")
    assert "KERAS_BACKEND selects 'jax'" in sentence


def test_every_part_is_imported_with_the_others():
    folders = {
        path.parent.name
        for path in pathlib.Path(keras_performer.__file__).parent.glob("*/__init__.py")
    }
    assert set(keras_performer._PARTS) == folders - {"preflight"}
    assert set(keras_performer.__all__) == {
        *keras_performer._PART_OF,
        *("feature_maps", "layers", "ops", "testing", "zoo"),
    }
    for name in keras_performer.__all__:
        assert getattr(keras_performer, name) is not None


def test_missing_tensorflow_names_what_to_install():
    # Python's own way to say that a module is not there.
    sentence = refusal("import sys; sys.modules['tensorflow'] = None; " + IMPORT)
    assert "needs TensorFlow, which is not installed" in sentence
    for remedy in ("keras_performer[tensorflow]", "[cpu]", "tensorflow-tpu"):
        assert remedy in sentence


def test_folder_left_by_an_uninstalled_tensorflow_is_not_tensorflow(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    only_this_tensorflow = (
        "import importlib.machinery, importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "def find_spec(name, package=None):\n"
        "    if name != 'tensorflow': return real(name, package)\n"
        f"    path = [{str(tmp_path)!r}]\n"
        "    return importlib.machinery.PathFinder.find_spec(name, path)\n"
        "importlib.util.find_spec = find_spec\n"
    )
    assert "not installed" in refusal(only_this_tensorflow + IMPORT)


@pytest.mark.parametrize("backend", ["jax", "torch", "no_such_backend"])
def test_other_backend_is_refused_whether_or_not_it_is_installed(backend):
    sentence = refusal(IMPORT, KERAS_BACKEND=backend)
    assert f"KERAS_BACKEND selects '{backend}'" in sentence
    assert "set KERAS_BACKEND=tensorflow" in sentence


def test_other_backend_in_keras_json_is_refused(tmp_path):
    path = tmp_path / "keras.json"
    path.write_text(json.dumps({"backend": "jax"}))
    sentence = refusal(IMPORT, KERAS_HOME=str(tmp_path))
    assert f"{path} selects 'jax'" in sentence


@pytest.mark.parametrize("backend", ["", "tensorflow"])  # Keras fails with either
def test_keras_json_without_an_object_is_refused(tmp_path, backend):
    path = tmp_path / "keras.json"
    path.write_text("[]")
    sentence = refusal(IMPORT, KERAS_HOME=str(tmp_path), KERAS_BACKEND=backend)
    assert f"needs a JSON object, such as {{}}, in {path}, but it holds []" in sentence


def test_backend_of_an_imported_keras_counts_and_not_the_variable():
    stand_in = (
        "import sys, types\n"
        "sys.modules['keras'] = keras = types.ModuleType('keras')\n"
        "keras.config = types.SimpleNamespace(backend=lambda: 'torch')\n"
    )
    sentence = refusal(stand_in + "import keras_performer", KERAS_BACKEND="tensorflow")
    assert "the Keras that is already imported selects 'torch'" in sentence


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_legacy_keras_is_refused(value):
    sentence = refusal(IMPORT, TF_USE_LEGACY_KERAS=value)
    assert f"TF_USE_LEGACY_KERAS={value}" in sentence
    assert "unset it" in sentence


@pytest.mark.slow
def test_import_has_no_side_effects(tmp_path):
    # The variable overrides the file, and TensorFlow ignores a legacy value of "0".
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    process = run_python(
        SIDE_EFFECTS,
        KERAS_HOME=str(tmp_path),
        KERAS_BACKEND="tensorflow",
        TF_USE_LEGACY_KERAS="0",
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "before\nafter\n"
    # TensorFlow may speak while it is loaded; nobody may afterwards.
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

assert keras.saving.get_registered_object("keras_performer>PerformerAttention")

# Raises if a device has been started.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(2)],
)
assert len(tf.config.list_logical_devices("CPU")) == 2
"""

REGISTERED = """
from keras.saving import get_registered_object
for name in "PerformerAttention", "PerformerLM", "RedrawFeatures", "SoftmaxFeatures":
    assert get_registered_object("keras_performer>" + name), name
"""
