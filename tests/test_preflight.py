"""`python -m keras_performer.preflight`, and its results for made-up machines."""

import os
import sys

import keras
import pytest

from keras_performer import preflight
from tests.test_import import run_python

GOOD = {"keras": "3.15.1", "tensorflow": "2.21.0"}
GOOD_TPU = {"keras": "3.15.1", "tensorflow-tpu": "2.19.1", "libtpu": "0.0.10"}


def run(**environment):
    return run_python("-m", "keras_performer.preflight", **environment)


@pytest.mark.slow
def test_command_prints_versions_and_devices():
    process = run()
    assert process.returncode == 0, process.stderr
    lines = dict(line.split(maxsplit=1) for line in process.stdout.splitlines() if line)
    assert lines["keras"] == keras.__version__
    assert "CPU:0" in lines["devices"]
    assert process.stdout.endswith("\n\nNo known problem.\n")


@pytest.mark.slow
def test_command_says_why_the_package_cannot_be_imported():
    process = run(TF_USE_LEGACY_KERAS="1")
    assert process.returncode == 1
    assert "keras_performer cannot be imported: status 1, saying: " in process.stdout
    assert "TF_USE_LEGACY_KERAS=1 asks for the legacy tf_keras" in process.stdout
    assert process.stderr == ""


def test_command_runs_with_a_tensorflow_that_aborts(tmp_path):
    # tensorflow-tpu 2.19.1 aborts like this with libtpu 0.0.48.
    aborts = (
        "import os, sys; print('F0 DoWork is missing.', file=sys.stderr); os.abort()"
    )
    (tmp_path / "tensorflow.py").write_text(aborts)
    process = run(PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert process.returncode == 1
    assert process.stdout.startswith("python ")
    assert "TensorFlow does not start: SIGABRT, saying: F0 DoWork" in process.stdout


def test_a_process_that_hangs_is_ended():
    code = (
        "import sys, time; print('waits', file=sys.stderr, flush=True); time.sleep(60)"
    )
    output, failure = preflight.ask(code, (), timeout=3)
    assert output == ""
    assert failure.startswith("no answer in 3 seconds")
    assert failure.endswith("--timeout), saying: waits")


# Replaces TensorFlow in the process that looks for devices.
TENSORFLOW = """
import types
class Resolver:
    @staticmethod
    def connect(name):
        {connect}
distribute = types.SimpleNamespace(
    cluster_resolver=types.SimpleNamespace(TPUClusterResolver=Resolver))
def devices(*names):
    return lambda: [types.SimpleNamespace(name=name) for name in names]
config = types.SimpleNamespace(
    list_physical_devices=devices("/physical_device:CPU:0"),
    list_logical_devices=devices("/device:TPU:1", "/device:TPU:0", "/device:CPU:0"))
"""
# tensorflow-tpu 2.19.1 fails like this without a TPU.
NO_TPU = (
    "raise RuntimeError('Graph execution error:\\n\\nTPU initialization failed: "
    "No ba16c7433 device found.\\n\\t [[{node configure_tpu_host/_2}]]')"
)


@pytest.mark.parametrize(
    ("connect", "tpu", "devices", "problem"),
    [
        ("raise ValueError(name)", None, "CPU:0", None),
        ("assert name == 'local'", "local", "CPU:0 TPU:0 TPU:1", None),
        (
            NO_TPU,
            "local",
            "no TPU",
            "initialization failed: No ba16c7433 device found.",
        ),
    ],
)
def test_devices(connect, tpu, devices, problem, tmp_path, monkeypatch):
    text = TENSORFLOW.format(connect=connect)
    (tmp_path / "tensorflow.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    found, problems = preflight.look_for_devices(tpu, timeout=60)
    assert found == devices
    assert len(problems) == (problem is not None)
    if problem:
        assert "finds no TPU 'local'" in problems[0] and problem in problems[0]
        assert "set TPU_NAME=local NEXT_PLUGGABLE_DEVICE" in problems[0]
        assert "PJRT_DEVICE" not in problems[0]


@pytest.mark.parametrize(
    ("versions", "tpu", "sentence"),
    [
        (GOOD, None, None),
        (GOOD_TPU, "local", None),
        (GOOD_TPU | {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.14"}, "local", None),
        (GOOD_TPU | {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.21"}, "local", None),
        (GOOD | {"tf-keras": "2.21.0", "libtpu": "0.0.42.1"}, None, None),
        ({"keras": "3.15.1"}, None, "TensorFlow is not installed"),
        (GOOD, "local", "tensorflow 2.21.0 cannot use a TPU"),
        (GOOD_TPU | {"libtpu": "0.0.9"}, None, "but 0.0.9 is installed"),
        (GOOD_TPU | {"libtpu": "0.0.14"}, None, "`pip install libtpu==0.0.10`"),
        (GOOD_TPU | {"libtpu": None}, None, "0.0.10, but none is installed"),
        (GOOD_TPU | {"tensorflow-tpu": "2.20.0"}, None, "from 0.0.14 to 0.0.21, but"),
        (GOOD_TPU | {"tensorflow-tpu": "2.18.0"}, None, "tensorflow-tpu==2.19.1"),
        (GOOD_TPU | GOOD, None, "`pip uninstall -y tensorflow tensorflow-tpu`"),
        (GOOD | {"tensorflow-cpu": "2.21.0"}, None, "are installed over one another"),
    ],
)
def test_packages(versions, tpu, sentence):
    problems = preflight.package_problems(versions, tpu)
    assert len(problems) == (sentence is not None)
    if sentence:
        assert sentence in problems[0]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=2", "forces XLA"),
        ("XLA_FLAGS", "--a=b --tf_xla_auto_jit=1", "forces XLA"),
        ("TF_XLA_FLAGS", "--tf_mlir_enable_mlir_bridge=true", None),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=0", None),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=-1 --tf_xla_cpu_global_jit", None),
        ("TPU_LIBRARY_PATH", "libtpu.so", "is not a file"),
        ("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "libtpu.so", "is not a file"),
        ("TPU_LIBRARY_PATH", __file__, None),
    ],
)
def test_variables(name, value, sentence, monkeypatch):
    assert preflight.variable_problems() == []
    monkeypatch.setenv(name, value)
    problems = preflight.variable_problems()
    assert len(problems) == (sentence is not None)
    if sentence:
        assert problems[0].startswith(f"{name}={value} {sentence}")
