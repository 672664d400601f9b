"""Ready-made models, and generation with them."""

from keras_performer.models.generate import generate, generate_stream
from keras_performer.models.performer_lm import PerformerLM
from keras_performer.models.presets import from_preset, preset_metadata, save_to_preset

__all__ = [
    "PerformerLM",
    "from_preset",
    "generate",
    "generate_stream",
    "preset_metadata",
    "save_to_preset",
]
