"""Lowers a `tf.function` to StableHLO, the form that TensorFlow gives to XLA."""

from unittest import mock

import tensorflow as tf


def pretended(device):
    """Pretends that there is a GPU or a TPU: layers then choose their sizes for it."""

    def devices(kind=None):
        return [device] if kind == device else []

    return mock.patch.object(tf.config, "list_logical_devices", devices)


def lower(function, *specs):
    """Returns StableHLO, as bytes, of a function of nests of `tf.TensorSpec`.

    The function may capture variables, but has no ops that only the host can run.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(*specs)(
        stage="stablehlo_serialized", platform_name="CPU"
    )
