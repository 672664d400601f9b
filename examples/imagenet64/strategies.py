"""Makes the `tf.distribute` strategy of a run from its settings."""

import contextlib

import tensorflow as tf

from examples.imagenet64 import multi_worker


def make(config):
    """Starts the devices of a run, and checks its settings; returns a strategy."""
    strategy = start(config)
    replicas = strategy.num_replicas_in_sync
    for name, is_wrong, must_be in (
        (
            "batch_size",
            config.batch_size % replicas,
            f"a multiple of the {replicas} replicas of strategy={config.strategy}, "
            "which share each batch",
        ),
        (
            # Keras looks at the gradients of the first replica: infinities of another
            # one would reach the weights of all
            "dtype_policy",
            config.dtype_policy == "mixed_float16" and replicas > 1,
            "mixed_bfloat16 or float32 with several replicas: in mixed_float16 Keras "
            "looks at one of them to decide whether to skip a step",
        ),
        (
            "steps_per_execution",
            min(config.steps_per_execution, replicas) > 1 and config.strategy != "tpu",
            "1 with several replicas: Keras fails on more, except on a TPU (keras "
            "issue 19246)",
        ),
        (
            "max_minutes",
            config.max_minutes and config.strategy == "multi_worker",
            "None with strategy=multi_worker: the machines would stop at different "
            "steps",
        ),
    ):
        if is_wrong:
            received = f"{name}={getattr(config, name)}"
            raise ValueError(f"{name} must be {must_be}. Received: {received}")
    return strategy


def start(config):
    """Starts the devices that `config` names, as a `tf.distribute.Strategy`."""
    return _STRATEGIES[config.strategy](config)


def one_device(config):
    """Returns the scope of work on one device, such as generating; CPU for a TPU."""
    if config.strategy == "tpu":
        return tf.device("CPU:0")
    return contextlib.nullcontext()


def _mirrored(config):
    devices = tf.config.list_logical_devices
    return tf.distribute.MirroredStrategy(
        [device.name for device in devices("GPU") or devices("CPU")]
    )


def _tpu(config):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=config.tpu)
    try:
        if config.tpu != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (tf.errors.OpError, RuntimeError) as error:
        raise RuntimeError(
            "strategy=tpu must find a TPU. `python -m keras_performer.preflight` says "
            f"what is wrong with this machine. Received: tpu={config.tpu}"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


_STRATEGIES = {
    "none": lambda config: tf.distribute.get_strategy(),
    "mirrored": _mirrored,
    "multi_worker": lambda config: multi_worker.MultiWorkerMirroredStrategy(),
    "tpu": _tpu,
}
