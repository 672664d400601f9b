"""Performer layers for Keras 3 on TensorFlow: attention linear in the length."""

import importlib
import typing

from keras_performer import _environment

__version__ = "0.1.0"

__all__ = [
    "PerformerAttention",
    "PerformerDecoder",
    "PerformerEncoder",
    "PerformerLM",
    "RedrawFeatures",
    "approximation_report",
    "calibrate",
    "convert_to_performer",
    "convert_to_softmax",
    "feature_maps",
    "generate",
    "generate_stream",
    "layers",
    "ops",
    "testing",
    "transfer_attention",
    "zoo",
]

# What has something to register with Keras, and what has not.
_REGISTERED = (
    "ops",
    "feature_maps",
    "layers",
    "callbacks",
    "recompute",
    "zoo",
    "models",
    "conversion",
)
_PARTS = (*_REGISTERED, "testing")
_PART_OF = {
    "PerformerAttention": "layers",
    "PerformerDecoder": "layers",
    "PerformerEncoder": "layers",
    "PerformerLM": "models",
    "RedrawFeatures": "callbacks",
    "approximation_report": "conversion",
    "calibrate": "conversion",
    "convert_to_performer": "conversion",
    "convert_to_softmax": "conversion",
    "generate": "models",
    "generate_stream": "models",
    "transfer_attention": "conversion",
}


if typing.TYPE_CHECKING:
    from keras_performer import feature_maps, layers, ops, testing
    from keras_performer.callbacks import RedrawFeatures
    from keras_performer.conversion import (
        approximation_report,
        calibrate,
        convert_to_performer,
        convert_to_softmax,
        transfer_attention,
    )
    from keras_performer.layers import (
        PerformerAttention,
        PerformerDecoder,
        PerformerEncoder,
    )
    from keras_performer.models import PerformerLM
    from keras_performer.models.generate import generate, generate_stream
else:

    def __getattr__(name):
        """Imports what is first used: the preflight must run where nothing can be."""
        if name in _PARTS:
            return importlib.import_module(f"keras_performer.{name}")
        if name not in _PART_OF:
            raise AttributeError(f"module 'keras_performer' has no attribute {name!r}")
        part = importlib.import_module(f"keras_performer.{_PART_OF[name]}")
        return globals().setdefault(name, getattr(part, name))


def __dir__():
    return sorted({*globals(), *__all__})


# All parts register what they have with Keras, so that a model that was saved can be
# loaded wherever keras_performer is imported, before Keras or after it.
_environment.import_with_keras(f"keras_performer.{part}" for part in _REGISTERED)
