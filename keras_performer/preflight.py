"""Versions and devices of this machine, and known problems with them.

    python -m keras_performer.preflight        # versions, devices, problems
    python -m keras_performer.preflight --tpu  # the same, and a TPU must be there

The exit status is 0 without problems, 1 with problems, 2 for wrong arguments. This file
imports neither the package nor TensorFlow, so it runs where these fail, hang or crash.
"""

import argparse
import importlib.metadata
import os
import platform
import re
import signal
import subprocess
import sys

# All of these install a folder `tensorflow`, and overwrite each other's files.
TENSORFLOWS = (
    *("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
    "tensorflow-tpu",
)
INSTALL_TPU = "`pip install tensorflow-tpu==2.19.1`"

# The oldest and the newest libtpu that a tensorflow-tpu works with. pip installs the
# right one for 2.19.1, but the newest for 2.20.0, where importing TensorFlow crashes.
LIBTPU = {"2.19": ("0.0.10", "0.0.10"), "2.20": ("0.0.14", "0.0.21")}

# Keras' own tests set these on machines with a TPU.
TPU_ENVIRONMENT = {
    "TPU_NAME": "local",
    "PJRT_DEVICE": "TPU",
    "NEXT_PLUGGABLE_DEVICE_USE_C_API": "true",
    "TF_XLA_FLAGS": "--tf_mlir_enable_mlir_bridge=true",
    "TF_PLUGGABLE_DEVICE_LIBRARY_PATH": "SITE_PACKAGES/libtpu/libtpu.so",
}

# Listing physical devices starts none; a TPU is started as training starts it.
DEVICES = """
import sys
import tensorflow as tf
devices = tf.config.list_physical_devices()
if sys.argv[1:]:
    tf.distribute.cluster_resolver.TPUClusterResolver.connect(sys.argv[1])
    devices = tf.config.list_logical_devices()
print(*sorted(device.name.split("device:")[1] for device in devices))
"""

# Lines of stderr that give no reason: tracebacks, C++ sources, logs.
NOISE = r"\s|$|\[\[|@|\*\*\*|===|learning/|[IW]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IW] "


def main(argv=None):
    """Prints versions, devices and problems; returns 1 if there are any, else 0."""
    parser = argparse.ArgumentParser(
        "python -m keras_performer.preflight", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--tpu", nargs="?", const="local", help="require this TPU")
    parser.add_argument(
        "--timeout", type=int, default=300, help="seconds that TensorFlow may take"
    )
    options = parser.parse_args(argv)

    versions = {"python": platform.python_version()} | installed()
    for name, version in versions.items():
        print(f"{name:16} {version}", flush=True)
    problems = package_problems(versions, options.tpu) + variable_problems()
    if not problems:
        devices, problems = look_for_devices(options.tpu, options.timeout)
        print(f"{'devices':16} {devices}")
    if not problems:
        _, failure = ask("import keras_performer", (), options.timeout)
        problems = [f"keras_performer cannot be imported: {failure}"] * bool(failure)
    for problem in problems:
        print(f"\nproblem: {problem}")
    if not problems:
        print("\nNo known problem.")
    return 1 if problems else 0


def installed():
    """Returns the version of each distribution that decides if the package can run."""
    names = ("keras_performer", "keras", *TENSORFLOWS, "libtpu", "tf-keras", "jax")
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return versions


def package_problems(versions, tpu=None):
    """Returns sentences about installed `versions`, none if nothing is wrong."""
    found = [name for name in TENSORFLOWS if name in versions]
    if not found:
        return ["TensorFlow is not installed: see `pip install` in the README."]
    if len(found) > 1:
        return [
            f"{' and '.join(found)} are installed over one another: `pip uninstall -y "
            f"{' '.join(found)}`, then install one of them again, and packages that "
            "require another (tf-keras does) with `pip install --no-deps`."
        ]
    if "tensorflow-tpu" in found:
        return _libtpu_problems(versions["tensorflow-tpu"], versions.get("libtpu"))
    if tpu is not None:
        return [
            f"{found[0]} {versions[found[0]]} cannot use a TPU: "
            f"`pip uninstall -y {found[0]}`, then {INSTALL_TPU}."
        ]
    return []


def _libtpu_problems(tensorflow, libtpu):
    release = ".".join(tensorflow.split(".")[:2])
    if release not in LIBTPU:
        return [f"tensorflow-tpu {tensorflow} was never tested: {INSTALL_TPU}."]
    oldest, newest = LIBTPU[release]
    if libtpu and _numbers(oldest) <= _numbers(libtpu) <= _numbers(newest):
        return []
    return [
        f"tensorflow-tpu {tensorflow} needs libtpu from {oldest} to {newest}, but "
        f"{libtpu or 'none'} is installed: `pip install libtpu=={oldest}`."
    ]


def _numbers(version):
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def variable_problems():
    """Returns sentences about environment variables, none if nothing is wrong."""
    problems = []
    for name in ("TF_XLA_FLAGS", "XLA_FLAGS"):
        flags = os.environ.get(name, "")
        if re.search(r"--tf_xla_auto_jit=(?!-1\b|0\b)", flags):
            problems.append(
                f"{name}={flags} forces XLA on every graph: remove tf_xla_auto_jit."
            )
    for name in ("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "TPU_LIBRARY_PATH"):
        path = os.environ.get(name)
        if path is not None and not os.path.isfile(path):
            problems.append(
                f"{name}={path} is not a file: set it to the libtpu.so in the folder "
                "of the installed libtpu."
            )
    return problems


def look_for_devices(tpu=None, timeout=300):
    """Returns the devices that TensorFlow lists, and sentences about problems."""
    devices, failure = ask(DEVICES, () if tpu is None else (tpu,), timeout)
    if not failure and (tpu is None or "TPU:" in devices):
        return devices, []
    if tpu is None:
        return "unknown", [f"TensorFlow does not start: {failure}"]
    sentence = f"TensorFlow finds no TPU {tpu!r}: {failure or 'only ' + devices + '.'}"
    unset = [f"{k}={v}" for k, v in TPU_ENVIRONMENT.items() if k not in os.environ]
    if unset:
        sentence += f" If this machine has one, set {' '.join(unset)} and try again."
    else:
        sentence += " Check that no other process uses it."
    return "no TPU", [sentence]


def ask(code, arguments, timeout):
    """Runs `code` in another Python; returns its output and a sentence if it failed."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as late:
        end = f"no answer in {timeout} seconds (a slow disk needs a longer --timeout)"
        output, errors = b"", late.stderr or b""
    else:
        output, errors, status = process.stdout, process.stderr, process.returncode
        if status == 0:
            return output.decode().strip(), ""
        end = f"status {status}" if status > 0 else signal.Signals(-status).name
    lines = errors.decode(errors="replace").splitlines()
    said = [line for line in lines if not re.match(NOISE, line)]
    return "", f"{end}, saying: {said[-1].strip() if said else 'nothing'}"


if __name__ == "__main__":
    sys.exit(main())
