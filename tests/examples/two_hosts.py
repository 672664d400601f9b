"""The program on the first of two hosts that `test_server.py` starts.

    python -m tests.examples.two_hosts SHARDS ADDRESS,ADDRESS

Each host reads its own part of four training batches, which are compared with those
that this process reads itself.
"""

import sys

import numpy as np
import tensorflow as tf

from examples.imagenet64 import data
from examples.imagenet64.config import Config


def main(folder, addresses):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(f"grpc://{addresses}")
    tf.config.experimental_connect_to_cluster(resolver)
    images = data.load(Config(data_dir=folder, batch_size=4))
    here = iter(images.train)
    hosts = []
    for host in range(2):
        with tf.device(f"/job:worker/task:{host}/device:CPU:0"):
            context = tf.distribute.InputContext(2, host, 2)
            hosts.append(iter(images.training_batches(context)))
    for _ in range(4):
        parts = [next(host) for host in hosts]
        for host, part in enumerate(parts):
            assert f"/job:worker/replica:0/task:{host}" in part.device, part.device
        np.testing.assert_array_equal(np.concatenate(parts), next(here))
    print("the hosts read the batches")
    try:
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except tf.errors.NotFoundError as error:
        print(error.message)


if __name__ == "__main__":
    main(*sys.argv[1:])
