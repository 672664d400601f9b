"""Trained models with other attention."""

from keras_performer.conversion.calibration import calibrate
from keras_performer.conversion.convert import (
    convert_to_performer,
    convert_to_softmax,
)
from keras_performer.conversion.converted import Converted
from keras_performer.conversion.report import (
    CalibratedLayer,
    CalibrationReport,
    ConversionReport,
    ConvertedLayer,
)

__all__ = [
    "CalibratedLayer",
    "CalibrationReport",
    "ConversionReport",
    "Converted",
    "ConvertedLayer",
    "calibrate",
    "convert_to_performer",
    "convert_to_softmax",
]
