"""Replaces the attention of trained models, and measures the error."""

from keras_performer.conversion.approximation import (
    ApproximationReport,
    HeadReport,
    ImpliedAttention,
    approximation_report,
    implied_attention,
)
from keras_performer.conversion.calibration import calibrate
from keras_performer.conversion.convert import (
    convert_attention,
    convert_to_performer,
    convert_to_softmax,
)
from keras_performer.conversion.converted import Converted
from keras_performer.conversion.report import (
    CalibratedLayer,
    CalibrationReport,
    ConversionReport,
    ConvertedLayer,
    TransferredLayer,
    TransferReport,
)
from keras_performer.conversion.transfer import transfer_attention

__all__ = [
    "ApproximationReport",
    "HeadReport",
    "ImpliedAttention",
    "approximation_report",
    "implied_attention",
    "CalibratedLayer",
    "CalibrationReport",
    "ConversionReport",
    "Converted",
    "ConvertedLayer",
    "TransferReport",
    "TransferredLayer",
    "calibrate",
    "convert_attention",
    "convert_to_performer",
    "convert_to_softmax",
    "transfer_attention",
]
