"""Known failures, each as one sentence that says what is wrong and what to do.

Nothing is imported to judge what is installed: with some versions of libtpu, importing
TensorFlow ends the process.
"""

import importlib.metadata
import operator
import os
import re

from keras_performer import _environment

# They all install a folder `tensorflow`, over each other's files.
TENSORFLOWS = (
    "tensorflow",
    "tensorflow-cpu",
    "tf-nightly",
    "tf-nightly-cpu",
    "tensorflow-tpu",
)
INSTALL_TPU = "`pip install tensorflow-tpu==2.19.1`"

# The oldest and the newest libtpu that a tensorflow-tpu works with. pip gives 2.19.1
# the right one, but 2.20.0 the newest, with which importing TensorFlow crashes.
LIBTPU = {"2.19": ("0.0.10", "0.0.10"), "2.20": ("0.0.14", "0.0.21")}


def package_problems(versions, tpu=None):
    """Judges what is installed.

    Args:
        versions: dict, the version of each installed distribution.
        tpu: str, the name of the TPU to train on, or `None`.

    Returns:
        A list of sentences, empty if nothing is wrong.

    Example:

    >>> package_problems({"keras": "2.15.0", "tensorflow": "2.21.0"})
    ['keras 2.15.0 is not within >=3.10,<4: `pip install "keras>=3.10,<4"`.']
    """
    problems, required = [], {}
    try:
        required = _required()
    except importlib.metadata.PackageNotFoundError:
        problems.append(
            "keras_performer is not installed, so that nothing says which versions it "
            "needs: `pip install -e .` in its folder."
        )
    installed = [name for name in TENSORFLOWS if name in versions]
    if len(installed) > 1:
        on_tpu = "tensorflow-tpu" in versions
        right = INSTALL_TPU if on_tpu else _install(installed[0], required)
        problems.append(
            f"{' and '.join(installed)} are installed over one another: "
            f"`pip uninstall -y {' '.join(installed)}`, then {right}, and whatever "
            "requires another TensorFlow (tf-keras does) with `pip install --no-deps`."
        )
    elif tpu and installed and "tensorflow-tpu" not in versions:
        problems.append(
            f"{installed[0]} {versions[installed[0]]} cannot use a TPU: "
            f"`pip uninstall -y {installed[0]}`, then {INSTALL_TPU}."
        )
    else:
        problems += _version_problems(installed, versions, required)
    if "tensorflow-tpu" in versions:
        problems += _libtpu_problems(versions["tensorflow-tpu"], versions.get("libtpu"))
    return problems + _version_problems(["keras"], versions, required)


def _required():
    """Requirements of setup.cfg, extras included: `{"keras": ">=3.10,<4", ...}`."""
    required = {}
    for line in importlib.metadata.requires("keras_performer"):
        name, bounds = re.match(r"([\w.-]+)([^;\s]*)", line).groups()
        required[name] = ",".join(sorted(bounds.split(","), reverse=True))
    return required


def _install(name, required):
    return f'`pip install "{name}{required.get(name, "")}"`'


def _version_problems(names, versions, required):
    """Judges those that setup.cfg names; not nightly builds, nor those for TPUs."""
    problems = []
    for name in [name for name in names if name in required]:
        bounds, advice = required[name], _install(name, required)
        if name not in versions:
            problems.append(f"{name} is not installed: {advice}.")
        elif not _is_within(_numbers(versions[name]), bounds):
            problems.append(
                f"{name} {versions[name]} is not within {bounds}: {advice}."
            )
    return problems


def _is_within(version, bounds):
    """True if a tuple of numbers is in bounds such as ">=3.10,<4"."""
    compare = {">=": operator.ge, "<": operator.lt}
    return all(
        compare[sign](version, _numbers(bound))
        for sign, bound in re.findall(r"([<>=!~]+)([^,]+)", bounds)
    )


def _libtpu_problems(tensorflow, libtpu):
    release = ".".join(tensorflow.split(".")[:2])
    if release not in LIBTPU:
        return [
            f"tensorflow-tpu {tensorflow} is not a version that keras_performer knows "
            f"to work: {INSTALL_TPU}."
        ]
    oldest, newest = LIBTPU[release]
    if libtpu and _numbers(oldest) <= _numbers(libtpu) <= _numbers(newest):
        return []
    needed = oldest if oldest == newest else f"{oldest} to {newest}"
    return [
        f"tensorflow-tpu {tensorflow} needs libtpu {needed}, but "
        f"{libtpu or 'none'} is installed: `pip install libtpu=={oldest}`."
    ]


def environment_problems():
    """Judges the environment variables, and which Keras they and keras.json choose.

    Returns:
        A list of sentences, empty if nothing is wrong.
    """
    problems = []
    try:
        _environment.check()
    except ImportError as refusal:
        problems.append(str(refusal))
    for name in ("TF_XLA_FLAGS", "XLA_FLAGS"):
        flags = os.environ.get(name, "")
        if re.search(r"--tf_xla_auto_jit=(?!-1\b|0\b)", flags):
            problems.append(
                f"{name}={flags} forces XLA on every graph: remove tf_xla_auto_jit; "
                "a TPU strategy compiles by itself."
            )
    for name in ("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "TPU_LIBRARY_PATH"):
        path = os.environ.get(name)
        if path is not None and not os.path.isfile(path):
            problems.append(
                f"{name}={path} is not a file: set it to the libtpu.so in the folder "
                "of the installed libtpu."
            )
    return problems


def model_problems(model):
    """Judges a compiled model by the strategy in whose scope it was made.

    Args:
        model: a Keras model.

    Returns:
        A list of sentences, empty if nothing is wrong.
    """
    import tensorflow as tf

    strategy = model.distribute_strategy
    tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    distributed = tpu or strategy.num_replicas_in_sync > 1
    if not (distributed and model.compiled and model.jit_compile):
        return []
    return [
        f"{model.name!r} was compiled with jit_compile=True, which fails under "
        f'{type(strategy).__name__}: leave `jit_compile="auto"` in `model.compile`.'
    ]


def _numbers(version):
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
