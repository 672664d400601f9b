"""A strategy with steps that are compiled for many replicas but traced once."""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended


class Replicas(tf.distribute.Strategy):
    """Equal replicas with synchronous gradients, like `tf.distribute.TPUStrategy`.

    Keras sees `num_replicas` replicas and divides the loss accordingly. Where Keras
    sums gradients over replicas, the program has an all-reduce over all replicas. Steps
    are only compiled: nothing runs more than one replica.

    Args:
        num_replicas: int.
    """

    def __init__(self, num_replicas):
        super().__init__(_Extended(self, num_replicas))


class _Extended(OneDeviceExtended):
    def __init__(self, strategy, num_replicas):
        super().__init__(strategy, "/device:CPU:0")
        self._num_replicas = num_replicas

    @property
    def _num_replicas_in_sync(self):
        return self._num_replicas

    def _call_for_each_replica(self, fn, args, kwargs):
        strategy, index = self._container_strategy(), gen_xla_ops.xla_replica_id()
        with tf.distribute.ReplicaContext(strategy, index):
            return fn(*args, **kwargs)

    def _reduce_to(self, reduce_op, value, destinations, options):
        if self._num_replicas == 1:
            return value
        total = gen_xla_ops.xla_all_reduce(
            input=tf.convert_to_tensor(value),
            group_assignment=[list(range(self._num_replicas))],
            reduce_op="Add",
            mode="CrossReplica",
        )
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        return total / self._num_replicas if is_mean else total
