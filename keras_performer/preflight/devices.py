"""The devices that TensorFlow finds, asked in a process that may hang or crash."""

import re
import signal
import subprocess
import sys

# What Keras' own tests set on machines with a TPU.
TPU_ENVIRONMENT = {
    "TPU_NAME": "local",
    "PJRT_DEVICE": "TPU",
    "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
    "TF_XLA_FLAGS": "--tf_mlir_enable_mlir_bridge=true",
    "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": "SITE_PACKAGES/libtpu/libtpu.so",
}

# To list physical devices starts none; a TPU is started as training starts it.
QUESTION = """
import sys
import tensorflow as tf
print("imported", flush=True)
devices = tf.config.list_physical_devices()
if sys.argv[1:]:
    tf.distribute.cluster_resolver.TPUClusterResolver.connect(sys.argv[1])
    devices = tf.config.list_logical_devices()
print(*sorted(device.name.split("device:")[1] for device in devices))
"""

LATE = "if the disk or the machine is slow, try again with a longer --timeout"

# What never tells why: lines of a traceback, of C++ sources and of logs.
NOISE = r"\s|$|\[\[|@|\*\*\*|===|learning/|[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] "


def look_for_devices(environment, tpu=None, timeout=300):
    """Imports TensorFlow in another process and asks it for its devices.

    Args:
        environment: dict, the environment variables of that process.
        tpu: str, the name of the TPU to start, or `None` to start nothing.
        timeout: float, seconds after which that process is ended.

    Returns:
        The names of the devices, and a list of sentences that say what went wrong and
        what to do, empty if nothing did.
    """
    try:
        process = subprocess.run(
            [sys.executable, "-c", QUESTION, *([tpu] if tpu else [])],
            # No warnings: the last line is quoted.
            env={**environment, "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as late:
        is_late = True
        end = f"did not finish in {timeout:g} seconds"
        output, errors = late.stdout or b"", late.stderr or b""
    else:
        is_late = False
        end = _describe(process.returncode)
        output, errors = process.stdout, process.stderr
    imported, _, devices = output.decode(errors="replace").strip().partition("\n")
    if end is None and (not tpu or "TPU:" in devices):
        return devices, []
    said = last_words(errors.decode(errors="replace"))
    why = f"it {end or 'found ' + devices}, saying: {said}"
    if not imported:
        advice = _import_advice(said, is_late)
        return "unknown", [f"TensorFlow cannot be imported ({why}): {advice}."]
    if not tpu:
        advice = f": {LATE}" if is_late else ""
        return "unknown", [f"TensorFlow cannot list its devices ({why}){advice}."]
    advice = _tpu_advice(environment) + (f"; {LATE}" if is_late else "")
    return "no TPU", [f"TensorFlow finds no TPU {tpu!r} ({why}): {advice}."]


def last_words(errors):
    """The last line of a process' error output that may tell why it ended."""
    lines = [line for line in errors.splitlines() if not re.match(NOISE, line)]
    return lines[-1].strip() if lines else "nothing"


def _describe(returncode):
    if returncode == 0:
        return None
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with status {returncode}"


def _import_advice(said, is_late):
    if "TPU metadata" in said:
        return "only a TPU VM has those; elsewhere install tensorflow, not -tpu"
    if is_late:
        return LATE
    return "install it again into a new environment"


def _tpu_advice(environment):
    missing = [
        f"{name}={value}"
        for name, value in TPU_ENVIRONMENT.items()
        if name not in environment
    ]
    if missing:
        return f"if this machine has one, set {' '.join(missing)} and try again"
    return "check that this machine has one and that no other process uses it"
