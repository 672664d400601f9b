"""Fixtures of every test: four CPUs, fixed seeds, an empty folder and no network.

Tests also free their memory.
"""

import ctypes
import gc
import itertools
import os
import socket
import sys
import types
from importlib.util import find_spec

# Before the import of TensorFlow, which reads the variable once.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402
import pytest  # noqa: E402
import tensorflow as tf  # noqa: E402
from tensorflow.python.framework.ops import gradient_registry  # noqa: E402

from keras_performer.layers import performer  # noqa: E402

# Tests compare the numbers of CPUs, with the block sizes of CPUs, unless asked.
if not os.environ.get("TESTS_ON_GPU"):
    tf.config.set_visible_devices([], "GPU")
# Logical CPUs stand in for replicas, and cannot be made once TensorFlow runs.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(4)],
)

# Folders whose tests need one more package, and a `make` target that installs it.
FURTHER = {"browser": "playwright", "keras_hub": "keras_hub"}
FURTHER |= {"litert": "ai_edge_litert", "tpu": "libtpu"}
collect_ignore = [x for x, package in FURTHER.items() if not find_spec(package)]

_c_library = ctypes.CDLL(None)
# State after the last garbage collection.
_cleaned = types.SimpleNamespace(resident_bytes=0)


@pytest.fixture(autouse=True, scope="session")
def frozen_imports():
    """Leaves imported objects out of garbage collection, which speeds it up."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def freed_graphs():
    """Frees the graphs that tests made.

    TensorFlow keeps the gradient of every `tf.custom_gradient` that it traced, and with
    it the graph, for as long as the process lives: 16 GB for the whole suite.
    """
    before = set(gradient_registry.list())
    yield
    for name in set(gradient_registry.list()) - before:
        del gradient_registry._registry[name]
    # a collection after every test would take a quarter of the suite's time
    if resident_bytes() > _cleaned.resident_bytes + 2**27:
        forget_distributions()
        gc.collect()
        if hasattr(_c_library, "malloc_trim"):  # glibc keeps freed memory
            _c_library.malloc_trim(0)
        _cleaned.resident_bytes = resident_bytes()


def forget_distributions():
    """Empties tensorflow-probability's cache, which keeps tensors and their graphs."""
    name = "tensorflow_probability.python.bijectors.bijector"
    if name in sys.modules:
        vars(sys.modules[name].Bijector)["_cache"].clear()


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def fresh_session():
    """Starts each test from the same seeds, layer names and dtype policy."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def two_threads(monkeypatch):
    """Lets `jit_compile="auto"` compile on machines with any number of CPUs."""
    monkeypatch.setattr(performer, "cpu_threads", lambda: 2)


@pytest.fixture
def uncompiled(monkeypatch):
    """Trains without XLA, whose compilation takes longer than short trainings."""
    _compile_with(monkeypatch, jit_compile=False)


@pytest.fixture
def eagerly(monkeypatch):
    """Trains without graphs, as two eager steps take less time than a trace."""
    _compile_with(monkeypatch, jit_compile=False, run_eagerly=True)


def _compile_with(monkeypatch, **given):
    # patch the class that defines it, as Keras does not load models that override it
    trainer = next(x for x in keras.Model.__mro__ if "compile" in vars(x))
    compile_model = trainer.compile

    def compile_otherwise(self, *args, **options):
        compile_model(self, *args, **{**options, **given})

    monkeypatch.setattr(trainer, "compile", compile_otherwise)


_collective_keys = itertools.count(0, 100_000)


@pytest.fixture(autouse=True)
def own_collective_keys(monkeypatch):
    """Gives the strategies of each test different keys.

    In one process a second `MirroredStrategy` repeats the keys of the first; if it has
    other devices, its `fit` ends at once, without an error.
    """
    strategy = tf.distribute.MirroredStrategy
    monkeypatch.setattr(strategy, "_collective_key_base", next(_collective_keys))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Runs each test in its own empty folder, outside the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Lets sockets reach this machine only."""
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, _only_local(name))


def _only_local(name):
    connect = getattr(socket.socket, name)

    def connect_if_local(self, address):
        is_internet = self.family in (socket.AF_INET, socket.AF_INET6)
        if is_internet and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"Tests must not use the network. Received: {address!r}")
        return connect(self, address)

    return connect_if_local
