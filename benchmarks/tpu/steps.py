"""Lowers the training steps of examples to StableHLO, for the TPU compiler."""

import dataclasses
from unittest import mock

import keras
import tensorflow as tf

from benchmarks.tpu.replicas import Replicas
from examples import long_text
from examples.imagenet64 import model as image_model
from examples.imagenet64 import train
from keras_performer.ops.slices import cut_for


def training_step(config, num_replicas, exact=False):
    """Returns StableHLO of one replica's part in a training step of a `Config`.

    The replicas share the batch. `exact` takes exact attention, the control.
    """
    keras.config.set_dtype_policy(config.dtype_policy)
    strategy = Replicas(num_replicas)
    with strategy.scope():
        model = make_exact(config) if exact else image_model.make(config)
        train.compile_model(model, config)
    return lower_step(model, strategy, config.batch_size // num_replicas)


def step_on_slice(config, num_replicas):
    """Returns StableHLO of one replica's part in a step of `examples.long_text`.

    Each replica has a slice of one sequence.
    """
    keras.config.set_dtype_policy(config.dtype_policy)
    strategy = Replicas(num_replicas)
    cut_for(strategy)  # one replica's slice is traced, so there is no data to cut
    with strategy.scope():
        model = long_text.make_model(config)
    return lower_step(model, strategy, 1, config.length // num_replicas)


def lower_step(model, strategy, batch_size, length=image_model.LENGTH):
    """Returns StableHLO of `model.train_step` on `(batch_size, length)` per replica."""
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    tokens = tf.TensorSpec((batch_size, length), tf.int32)

    def step(inputs, targets):
        return strategy.run(model.train_step, args=((inputs, targets),))

    def devices(kind=None):
        return ["TPU"] if kind == "TPU" else []

    # layers choose their sizes for a TPU
    with mock.patch.object(tf.config, "list_logical_devices", devices):
        return lower(step, tokens, tokens)


def lower(function, *specs):
    """Returns StableHLO, as bytes, of a function of nests of `tf.TensorSpec`.

    The function may capture variables, but has no ops that only the host can run.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(*specs)(
        stage="stablehlo_serialized", platform_name="CPU"
    )


def make_exact(config):
    """Makes the model of a config with exact softmax attention."""
    without = dataclasses.replace(config, attention="none", recompute=None)
    model = image_model.make(without)
    return type(model).from_config({**model.get_config(), "attention": "exact"})
