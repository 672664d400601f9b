"""How well linear attention estimates the attention of trained models."""

from keras_performer.approximation.implied import ImpliedAttention, implied_attention
from keras_performer.approximation.report import (
    ApproximationReport,
    HeadReport,
    approximation_report,
)

__all__ = [
    "ApproximationReport",
    "HeadReport",
    "ImpliedAttention",
    "approximation_report",
    "implied_attention",
]
