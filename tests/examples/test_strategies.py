import types

import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import strategies
from examples.imagenet64.config import Config


def test_mirrored_takes_all_devices_of_a_kind():
    cpus = tf.config.list_logical_devices("CPU")
    strategy = strategies.make(Config(strategy="mirrored", batch_size=2 * len(cpus)))
    assert strategy.num_replicas_in_sync == len(cpus) > 1
    devices = [device.name for device in cpus]
    assert [
        device[-len(name) :]
        for device, name in zip(strategy.extended.worker_devices, devices)
    ] == devices


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 3}, r"batch_size must be a multiple of the \d replicas of str"),
        (
            {"batch_size": 4, "dtype_policy": "mixed_float16"},
            "dtype_policy must be mixed_bfloat16.*dtype_policy=mixed_float16",
        ),
        (
            {"batch_size": 4, "steps_per_execution": 2},
            "steps_per_execution must be 1 with several replicas.*keras issue 19246",
        ),
    ],
)
def test_what_replicas_cannot_share_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        strategies.make(Config(strategy="mirrored", **changes))


def test_machines_do_not_stop_by_the_clock(monkeypatch):
    one = tf.distribute.get_strategy()
    monkeypatch.setattr(
        strategies.multi_worker, "MultiWorkerMirroredStrategy", lambda: one
    )
    with pytest.raises(ValueError, match="max_minutes must be None.*different steps"):
        strategies.make(Config(strategy="multi_worker", max_minutes=5))
    config = Config(strategy="multi_worker", max_minutes=None)
    assert strategies.make(config) is one


def test_mirrored_prefers_gpus(monkeypatch):
    two = tf.config.list_logical_devices("CPU")[:2]  # call themselves GPUs
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: two if kind == "GPU" else []
    )
    strategy = strategies.make(Config(strategy="mirrored", batch_size=2))
    assert strategy.num_replicas_in_sync == 2


def test_a_tpu_may_take_several_steps_at_once(monkeypatch):
    tpu = types.SimpleNamespace(num_replicas_in_sync=4)
    monkeypatch.setitem(strategies._STRATEGIES, "tpu", lambda config: tpu)
    config = Config(strategy="tpu", batch_size=8, steps_per_execution=2)
    assert strategies.make(config) is tpu


@pytest.mark.parametrize("tpu", ["local", "grpc://127.0.0.1:1,127.0.0.1:2"])
def test_a_machine_without_a_tpu_is_sent_to_the_preflight(tpu, monkeypatch):
    connected = []
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", connected.append)
    with pytest.raises(
        RuntimeError, match="must find a TPU.*keras_performer.preflight"
    ):
        strategies.make(Config(strategy="tpu", tpu=tpu))
    assert len(connected) == (tpu != "local")  # its own servers need no connection


def test_what_is_not_shared_runs_on_the_cpu_beside_a_tpu():
    with tf.device("CPU:1"):  # a TPU's host has one CPU, but other devices
        with strategies.one_device(Config(strategy="tpu")):
            assert "CPU:0" in tf.constant(np.zeros(3)).device
        with strategies.one_device(Config(strategy="none")):
            assert "CPU:1" in tf.constant(np.zeros(3)).device
