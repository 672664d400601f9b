"""Ready-made models, and generation with them."""

from keras_performer.models.generate import generate, generate_stream
from keras_performer.models.performer_lm import PerformerLM

__all__ = ["PerformerLM", "generate", "generate_stream"]
