"""The training step of the ImageNet64 example, as a program for the TPU compiler."""

import dataclasses
from unittest import mock

import keras
import tensorflow as tf

from benchmarks import stablehlo
from benchmarks.tpu.replicas import Replicas
from examples.imagenet64 import model as image_model
from examples.imagenet64 import train


def training_step(config, num_replicas, exact=False):
    """StableHLO of what one replica does for one optimizer step of a `Config`.

    Its batch is shared by the replicas. `exact` has exact attention, the control.
    """
    keras.config.set_dtype_policy(config.dtype_policy)
    strategy = Replicas(num_replicas)
    with strategy.scope():
        model = make_exact(config) if exact else image_model.make(config)
        train.compile_model(model, config)
    return lower_step(model, strategy, config.batch_size // num_replicas)


def lower_step(model, strategy, batch_size, length=image_model.LENGTH):
    """StableHLO of `model.train_step` on `(batch_size, length)` tokens a replica."""
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    tokens = tf.TensorSpec((batch_size, length), tf.int32)

    def step(inputs, targets):
        return strategy.run(model.train_step, args=((inputs, targets),))

    with mock.patch.object(tf.config, "list_logical_devices", tpus):
        return stablehlo.lower(step, tokens, tokens)


def tpus(kind=None):
    """Stands for a TPU where layers ask what there is, to choose their sizes."""
    return ["TPU"] if kind == "TPU" else []


def make_exact(config):
    """The same model with exact softmax attention at every length."""
    without = dataclasses.replace(config, attention="none", recompute=None)
    model = image_model.make(without)
    return type(model).from_config({**model.get_config(), "attention": "exact"})
