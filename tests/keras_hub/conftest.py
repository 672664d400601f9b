"""Fixtures for the environment of `make hub-check`, which has KerasHub."""

import importlib.util
import warnings

# KerasHub is large and needs a newer Keras than we do; `make test` does without it.
if importlib.util.find_spec("keras_hub") is None:
    collect_ignore_glob = ["*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from packages that it imports
        import keras_hub  # noqa: F401
