"""Devices of a run, and its optimizer on one or several devices."""

import dataclasses
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import optimizer, strategies
from examples.imagenet64.config import Config


def replicas_of(number):
    if number == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(number)])


@pytest.mark.parametrize("with_gpus", [False, True])
def test_mirrored_takes_all_devices_of_a_kind_gpus_first(with_gpus, monkeypatch):
    devices = tf.config.list_logical_devices("CPU")
    if with_gpus:  # two CPUs appear as GPUs
        devices = devices[:2]
        found = {"GPU": devices, "CPU": []}
        monkeypatch.setattr(tf.config, "list_logical_devices", found.get)
    config = Config(strategy="mirrored", batch_size=2 * len(devices))
    strategy = strategies.make(config)
    assert strategy.num_replicas_in_sync == len(devices) > 1
    used = strategy.extended.worker_devices
    assert [x.endswith(y.name) for x, y in zip(used, devices)] == [True] * len(devices)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 3}, r"batch_size must be a multiple of the \d replicas of str"),
        ({"dtype_policy": "mixed_float16"}, "must be mixed_bfloat16.*=mixed_float16"),
        ({"steps_per_execution": 2}, "must be 1 with several.*keras issue 19246"),
        ({"strategy": "multi_worker"}, "max_minutes must be None.*different steps"),
        ({"strategy": "tpu"}, "must find a TPU.*keras_performer.preflight"),
        ({"strategy": "tpu", "tpu": "grpc://127.0.0.1:1"}, "must find a TPU"),
    ],
)
def test_what_devices_cannot_do_is_refused(changes, message, monkeypatch):
    one = replicas_of(1)
    workers = strategies.multi_worker
    monkeypatch.setattr(workers, "MultiWorkerMirroredStrategy", lambda: one)
    connected = []
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", connected.append)
    settings = {"strategy": "mirrored", "batch_size": 4, **changes}
    with pytest.raises((ValueError, RuntimeError), match=message):
        strategies.make(Config(**settings))
    assert len(connected) == ("tpu" in changes)  # its own servers need no connection
    config = Config(strategy="multi_worker", max_minutes=None)
    assert strategies.make(config) is one


def test_a_tpu_may_take_several_steps_at_once(monkeypatch):
    tpu = types.SimpleNamespace(num_replicas_in_sync=4)
    monkeypatch.setitem(strategies._STRATEGIES, "tpu", lambda config: tpu)
    config = Config(strategy="tpu", batch_size=8, steps_per_execution=2)
    assert strategies.make(config) is tpu


@pytest.mark.parametrize(("strategy", "device"), [("tpu", "CPU:0"), ("none", "CPU:1")])
def test_what_is_not_shared_runs_on_the_cpu_beside_a_tpu(strategy, device):
    with tf.device("CPU:1"):  # a TPU's host has a CPU and other devices
        with strategies.one_device(Config(strategy=strategy)):
            assert device in tf.constant(np.zeros(3)).device


# -- The optimizer's step. With this large epsilon, a step is proportional to
#    the gradient.


CONFIG = Config(
    learning_rate=10.0,
    learning_rate_decay="none",
    warmup_steps=0,
    weight_decay=0.01,
    epsilon=100.0,
)
TOKENS = np.array([[0, 1, 1, 2], [1, 1, 1, 3], [2, 0, 1, 1], [3, 3, 3, 1]])
TARGETS = np.array([[3.0], [-8.0], [5.0], [2.0]])


def make_model():
    keras.utils.set_random_seed(1)
    layers = keras.layers.Embedding(5, 2), keras.layers.Flatten(), keras.layers.Dense(1)
    return keras.Sequential([keras.Input((4,), dtype="int32"), *layers])


def step_of_keras(config):
    """Returns the weights after a step of Keras' AdamW on the clipped gradients."""
    model = make_model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(TOKENS) - TARGETS) ** 2)
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    if config.global_clipnorm:
        # A sum that was divided by the replicas would not be clipped.
        norm = tf.linalg.global_norm(gradients)
        assert config.global_clipnorm < norm < 1.9 * config.global_clipnorm
        gradients, _ = tf.clip_by_global_norm(gradients, config.global_clipnorm, norm)
    names = "learning_rate", "weight_decay", "beta_1", "beta_2", "epsilon"
    options = {name: getattr(config, name) for name in names}
    keras.optimizers.AdamW(**options).apply(gradients, model.trainable_variables)
    return model.get_weights()


@pytest.mark.parametrize("replicas, clip", [(1, 4.0), (2, None), (4, 4.0)])
def test_a_step_is_that_of_the_whole_batch(replicas, clip):
    config = dataclasses.replace(CONFIG, global_clipnorm=clip)
    expected = step_of_keras(config)
    with replicas_of(replicas).scope():
        model = make_model()
        model.compile(optimizer.make(config), "mse", jit_compile=False)
    model.fit(TOKENS, TARGETS, batch_size=4, shuffle=False, verbose=0)
    for value, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=2e-6)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [("cosine", [0, 0.5, 1, 0.505, 0.01]), ("none", [0, 0.5, 1, 1, 1])],
)
def test_the_learning_rate_warms_up_and_decays(decay, expected):
    settings = {"num_steps": 100, "learning_rate": 1.0, "warmup_steps": 10}
    rate = optimizer.learning_rate(Config(learning_rate_decay=decay, **settings))
    rates = [float(rate(step)) for step in (0, 5, 10, 55, 100)]
    np.testing.assert_allclose(rates, expected, atol=1e-6)
