"""Fixtures for the environment of `make hub-check`, which has KerasHub."""

import importlib.util
import warnings

# KerasHub needs a newer Keras than we do, and brings much; `make test` does without it.
if importlib.util.find_spec("keras_hub") is None:
    collect_ignore_glob = ["*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of what it imports
        import keras_hub  # noqa: F401
