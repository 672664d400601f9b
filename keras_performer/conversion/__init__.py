"""Trained models with other attention."""

from keras_performer.conversion.convert import (
    convert_to_performer,
    convert_to_softmax,
)
from keras_performer.conversion.converted import Converted
from keras_performer.conversion.report import ConversionReport

__all__ = [
    "ConversionReport",
    "Converted",
    "convert_to_performer",
    "convert_to_softmax",
]
