"""Looking for devices with a TensorFlow that hangs, crashes, or finds a TPU."""

import pytest

from keras_performer import preflight

WAIT = "import time; time.sleep(60)"
WAIT_TO_LIST = f"def wait(): {WAIT}\nconfig.list_physical_devices = wait"

# Stands in for TensorFlow: the process that looks for devices imports it instead.
TENSORFLOW = """
import sys, types
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
{and_then}
"""


def look(tmp_path, tpu=None, connect="pass", and_then="", timeout=60, **environment):
    """Looks for devices with a TensorFlow that does what it is told."""
    text = TENSORFLOW.format(connect=connect, and_then=and_then)
    (tmp_path / "tensorflow.py").write_text(text)
    environment["PYTHONPATH"] = str(tmp_path)
    return preflight.look_for_devices(environment, tpu, timeout)


def test_devices_are_only_listed_unless_a_tpu_is_required(tmp_path):
    assert look(tmp_path, connect="raise ValueError(name)") == ("CPU:0", [])


def test_required_tpu_is_started_and_its_cores_are_listed(tmp_path):
    connect = "assert name == 'local'"
    assert look(tmp_path, "local", connect) == ("CPU:0 TPU:0 TPU:1", [])


def test_missing_variables_are_named_where_no_tpu_is_found(tmp_path):
    # As tensorflow-tpu 2.19.1 ends without one.
    connect = (
        "raise RuntimeError('Graph execution error:\\n\\nTPU initialization failed: "
        "No ba16c7433 device found.\\n\\t [[{{node configure_tpu_host/_2}}]]')"
    )
    devices, problems = look(tmp_path, "local", connect, PJRT_DEVICE="TPU")
    assert devices == "no TPU"
    sentence = problems[0]
    assert "finds no TPU 'local'" in sentence
    assert "saying: TPU initialization failed: No ba16c7433 device found.)" in sentence
    assert "set TPU_NAME=local NEXT_PLUGGABLE_DEVICE_USE_C_API=true TF_" in sentence
    assert "PJRT_DEVICE" not in sentence


def test_import_that_aborts_is_reported_with_its_last_words(tmp_path):
    # As tensorflow-tpu 2.19.1 ends with libtpu 0.0.48.
    last_words = "F tpu_library_init_fns.inc:12] DoWork not available in this library."
    and_then = f"import os; print({last_words!r}, file=sys.stderr); os.abort()"
    devices, problems = look(tmp_path, and_then=and_then)
    assert devices == "unknown"
    assert f"was ended by SIGABRT, saying: {last_words})" in problems[0]


def test_import_that_hangs_is_given_up(tmp_path):
    # As tensorflow-tpu 2.19.1 begins outside of Google Cloud.
    lines = (
        "Failed to get TPU metadata (tpu-env): INTERNAL\n=== Source: ===\nlearning/a"
    )
    and_then = (
        f"print({lines!r}, file=sys.stderr, flush=True); import signal; signal.pause()"
    )
    sentence = look(tmp_path, and_then=and_then, timeout=3)[1][0]
    assert "did not finish in 3 seconds, saying: Failed to get TPU meta" in sentence
    assert "only a TPU VM has those" in sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slow", "tpu", "what"),
    [
        ({"and_then": WAIT}, None, "TensorFlow cannot be imported"),
        ({"and_then": WAIT_TO_LIST}, None, "TensorFlow cannot list its devices"),
        ({"connect": WAIT}, "local", "TensorFlow finds no TPU 'local'"),
    ],
    ids=["import", "list", "connect"],
)
def test_what_was_too_slow_is_to_get_more_time(tmp_path, slow, tpu, what):
    sentence = look(tmp_path, tpu, timeout=3, **slow)[1][0]
    assert sentence.startswith(f"{what} (it did not finish in 3 seconds")
    assert sentence.endswith("try again with a longer --timeout.")
    assert "install it again" not in sentence
    assert ("set TPU_NAME=local" in sentence) == bool(tpu)


def test_import_that_raises_is_reported(tmp_path):
    sentence = look(tmp_path, and_then="import no_such_module_")[1][0]
    assert "No module named 'no_such_module_'" in sentence
    assert sentence.endswith("install it again into a new environment.")
