"""Imports KerasHub before the tests do, whose warnings are errors."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from packages that it imports
    import keras_hub  # noqa: F401
