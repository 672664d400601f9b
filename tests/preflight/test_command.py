"""`python -m keras_performer.preflight`, run for real."""

import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf


def run(*arguments, **environment):
    # A home of its own: a keras.json of whoever runs the tests must not decide them.
    environment = {"KERAS_HOME": os.path.join(os.getcwd(), "home"), **environment}
    return subprocess.run(
        [sys.executable, "-m", "keras_performer.preflight", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_command_prints_versions_and_devices():
    process = run()
    assert process.returncode == 0, process.stderr
    lines = dict(line.split(maxsplit=1) for line in process.stdout.splitlines() if line)
    assert lines["keras"] == keras.__version__
    assert tf.__version__ in lines.values()  # of whichever distribution
    assert "CPU:0" in lines["devices"]
    assert process.stdout.endswith("\n\nNo known problem.\n")


@pytest.mark.slow
def test_command_fails_where_a_tpu_is_required():
    process = run("--tpu")
    assert process.returncode == 1, process.stderr
    assert "cannot use a TPU: `pip uninstall -y tensorflow" in process.stdout
    assert "No known problem" not in process.stdout


def test_command_runs_where_the_package_refuses_to():
    process = run(TF_USE_LEGACY_KERAS="1")
    assert process.returncode == 1
    assert process.stdout.startswith("python ")
    assert "problem: keras_performer needs Keras 3" in process.stdout
    assert process.stderr == ""


def test_command_survives_a_tensorflow_that_aborts(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import os; os.abort()")
    process = run()  # in that folder
    assert process.returncode == 1
    assert "TensorFlow cannot be imported (it was ended by SIGABRT" in process.stdout


@pytest.mark.parametrize("seconds", ["nan", "inf", "0", "-1", "1e300", "soon"])
def test_a_timeout_that_cannot_be(seconds):
    process = run(f"--timeout={seconds}")
    assert process.returncode == 2
    wanted = (
        f"a positive number of seconds, at most 86400 (a day). Received: {seconds!r}"
    )
    assert wanted in " ".join(process.stderr.split())
    assert process.stdout == ""


def test_an_empty_name_is_not_no_tpu():
    process = run("--tpu=")
    assert process.returncode == 2
    assert "must be the name of a TPU" in process.stderr and process.stdout == ""
