"""Keras callbacks."""

from keras_performer.callbacks.redraw_features import RedrawFeatures

__all__ = ["RedrawFeatures"]
