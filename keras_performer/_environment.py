"""Refuses surroundings in which the package cannot work, before Keras is loaded.

And has everything imported together with Keras: `import keras_performer` itself must
import nothing, as `python -m keras_performer.preflight` begins with it where importing
Keras or TensorFlow fails, hangs or ends the process.
"""

import importlib
import importlib.abc
import importlib.util
import json
import os
import sys


def check():
    """Raises an `ImportError` of one sentence unless Keras 3 runs on TensorFlow.

    Nothing is imported here: with `KERAS_BACKEND=jax` and no JAX, for instance,
    importing Keras would fail first, with an error about JAX.
    """
    # The values by which TensorFlow itself takes the variable to be set.
    legacy_keras = os.environ.get("TF_USE_LEGACY_KERAS")
    if legacy_keras in ("true", "True", "1"):
        raise ImportError(
            "keras_performer needs Keras 3, but TF_USE_LEGACY_KERAS="
            f"{legacy_keras} asks for the legacy tf_keras: unset it and start Python "
            "again."
        )
    backend, source = _keras_backend()
    if backend != "tensorflow":
        raise ImportError(
            "keras_performer runs on the TensorFlow backend of Keras, but "
            f"{source} selects {backend!r}: set KERAS_BACKEND=tensorflow and start "
            "Python again."
        )
    if not _is_installed("tensorflow"):
        raise ImportError(
            "keras_performer needs TensorFlow, which is not installed: run "
            '`pip install "keras_performer[tensorflow]"` (or `[cpu]`), or '
            "`pip install tensorflow-tpu==2.19.1` on a TPU machine."
        )


def import_with_keras(modules):
    """Imports modules now if Keras is loaded, else with the first of them or with it.

    Args:
        modules: names of modules that need Keras.

    Raises:
        ImportError: as `check`, from whichever import it is that loads them.
    """
    modules = tuple(modules)
    if "keras" in sys.modules:
        check()
        _import_all(modules)
    else:
        sys.meta_path.insert(0, _Doorkeeper(modules))


def _import_all(modules):
    for module in modules:
        importlib.import_module(module)


class _Doorkeeper(importlib.abc.MetaPathFinder):
    """Stands before Python's finders until Keras or one of the modules is imported."""

    def __init__(self, modules):
        self._modules = modules

    def find_spec(self, name, path=None, target=None):
        if name != "keras" and name not in self._modules:
            return None
        spec = self._found_by_others(name, path, target)
        if spec is not None and spec.loader is not None:  # as a mere folder has none
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self._let_in(module, execute)
        return spec

    def _found_by_others(self, *arguments):
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(*arguments)
            if spec is not None:
                return spec
        return None

    def _let_in(self, module, execute):
        """Executes the module, then imports all; what it imports comes in freely."""
        if module.__name__ != "keras":
            check()
        if self not in sys.meta_path or not _is_welcome():
            return execute(module)
        sys.meta_path.remove(self)
        try:
            execute(module)
        except BaseException:
            sys.meta_path.insert(0, self)
            raise
        _import_all(self._modules)


def _is_welcome():
    """True if `check` passes. Who imports Keras alone need not hear why it does not."""
    try:
        check()
    except ImportError:
        return False
    return True


def _keras_backend():
    """Returns the backend that Keras has or would choose, and what chose it."""
    keras_config = getattr(sys.modules.get("keras"), "config", None)
    if hasattr(keras_config, "backend"):
        return keras_config.backend(), "the Keras that is already imported"
    # From here on as in `keras/src/backend/config.py`.
    path = os.path.join(_keras_home(), "keras.json")
    try:
        with open(path, encoding="utf-8") as file:
            settings = json.load(file)
    except (OSError, ValueError):  # No such file, or not JSON: Keras' default.
        settings = {}
    if not isinstance(settings, dict):  # Keras fails, whatever the variable says.
        raise ImportError(
            f"Keras needs a JSON object, such as {{}}, in {path}, but it holds "
            f"{settings!r}: delete that file and start Python again."
        )
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"], "KERAS_BACKEND"
    return settings.get("backend", "tensorflow"), path


def _keras_home():
    if "KERAS_HOME" in os.environ:
        return os.path.expanduser(os.environ["KERAS_HOME"])
    home = os.path.expanduser("~")
    return os.path.join(home if os.access(home, os.W_OK) else "/tmp", ".keras")


def _is_installed(name):
    spec = importlib.util.find_spec(name)
    # A folder that pip left behind has a spec, but no file to load.
    return spec is not None and spec.origin is not None
