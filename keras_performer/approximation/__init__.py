"""How well linear attention estimates the attention of trained models."""

from keras_performer.approximation.report import (
    ApproximationReport,
    HeadReport,
    approximation_report,
)

__all__ = ["ApproximationReport", "HeadReport", "approximation_report"]
