"""Performer layers for Keras 3 on TensorFlow: attention linear in the length."""

from keras_performer import _environment

__version__ = "0.1.0"

# The preflight runs where the rest may not be importable: it says why.
if not _environment.is_preflight():
    _environment.check()

    from keras_performer import feature_maps, ops
    from keras_performer.callbacks import RedrawFeatures
    from keras_performer.layers import PerformerAttention
    from keras_performer.models import PerformerLM, generate

__all__ = [
    "PerformerAttention",
    "PerformerLM",
    "RedrawFeatures",
    "feature_maps",
    "generate",
    "ops",
]
