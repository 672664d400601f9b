"""Performer layers for Keras 3 on TensorFlow: attention linear in the length."""

from keras_performer import _environment

_environment.check()

from keras_performer import feature_maps, ops  # noqa: E402
from keras_performer.callbacks import RedrawFeatures  # noqa: E402
from keras_performer.layers import PerformerAttention  # noqa: E402
from keras_performer.models import PerformerLM, generate  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "PerformerAttention",
    "PerformerLM",
    "RedrawFeatures",
    "feature_maps",
    "generate",
    "ops",
]
