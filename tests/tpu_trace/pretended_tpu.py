"""A real `tf.distribute.TPUStrategy` on a machine without TPU, for tracing only.

Only the description of the slice is made up. TensorFlow places variables on the CPU
if it does not find `/device:TPU:i`, and builds the same program for the replicas as
on a TPU, but has no kernels to run the program.
"""

from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.tpu import device_assignment as assignments
from tensorflow.python.tpu import topology as topologies
from tensorflow.python.tpu import tpu_strategy_util, tpu_system_metadata

_HOST = "/job:localhost/replica:0/task:0/device:"


def strategy(num_replicas):
    """Returns a strategy over a fake host with `num_replicas` TPU cores."""
    cores = [[[core, 0, 0, 0] for core in range(num_replicas)]]
    topology = topologies.Topology(
        mesh_shape=[num_replicas, 1, 1, 1],
        device_coordinates=np.array(cores, np.int32),
    )
    names = [("TPU", core) for core in range(num_replicas)] + [("CPU", 0)]
    devices = [
        session._DeviceAttributes(f"{_HOST}{kind}:{index}", kind, 0, number)
        for number, (kind, index) in enumerate(names)
    ]
    slice_metadata = tpu_system_metadata.TPUSystemMetadata(
        num_cores=num_replicas,
        num_hosts=1,
        num_of_cores_per_host=num_replicas,
        topology=topology,
        devices=devices,
    )
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    assignment = assignments.device_assignment(topology, num_replicas=num_replicas)
    # entries of initialize_tpu_system, and the report of a TPU host
    initialized = {resolver.master() or "": topology}
    with (
        mock.patch.object(tpu_strategy_util, "_INITIALIZED_TPU_SYSTEMS", initialized),
        mock.patch.object(
            type(resolver), "get_tpu_system_metadata", lambda self: slice_metadata
        ),
    ):
        return tf.distribute.TPUStrategy(
            resolver, experimental_device_assignment=assignment
        )
