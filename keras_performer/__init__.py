"""Performer layers for Keras 3 on TensorFlow: attention linear in the length."""

import sys

__version__ = "0.1.0"

# Keras finds classes of saved models by their registered names, so all parts are
# imported at once. The preflight must run even where these imports fail.
if "-m keras_performer.preflight" not in " ".join(sys.orig_argv):
    from keras_performer import _environment

    _environment.check()

    from keras_performer import feature_maps, layers, ops, testing, zoo
    from keras_performer.callbacks import RedrawFeatures
    from keras_performer.conversion import (
        approximation_report,
        calibrate,
        convert_to_performer,
        convert_to_softmax,
        transfer_attention,
    )
    from keras_performer.distribution import sequence_parallel
    from keras_performer.layers import (
        PerformerAttention,
        PerformerDecoder,
        PerformerEncoder,
    )
    from keras_performer.models import PerformerLM, generate, generate_stream

__all__ = [
    "PerformerAttention",
    "PerformerDecoder",
    "PerformerEncoder",
    "PerformerLM",
    "RedrawFeatures",
    "approximation_report",
    "calibrate",
    "convert_to_performer",
    "convert_to_softmax",
    "feature_maps",
    "generate",
    "generate_stream",
    "layers",
    "ops",
    "sequence_parallel",
    "testing",
    "transfer_attention",
    "zoo",
]
