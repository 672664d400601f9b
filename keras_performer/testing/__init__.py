"""Checks of any Keras model, for use in tests."""

from keras_performer.testing.causality import check_causal
from keras_performer.testing.masks import check_masks

__all__ = ["check_causal", "check_masks"]
