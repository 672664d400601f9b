"""Several hosts train on the batches of one host, each reading its own images only."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import data, shards
from examples.imagenet64.config import Config
from examples.imagenet64.convert import convert
from tests.examples import archives

IMAGES = 11  # no multiple of a batch, nor of the shards


@pytest.fixture(params=["npz", "3 shards"])
def folder(request, tmp_path):
    archives.write_npz(tmp_path / "npz", train=(7, 4))
    if request.param == "npz":
        return str(tmp_path / "npz")
    target = str(tmp_path / "shards")
    convert(str(tmp_path / "npz"), target, shards=int(request.param[0]))
    return target


def load(folder, start_step=0, seed=1, batch_size=4):
    config = Config(data_dir=folder, batch_size=batch_size, seed=seed)
    return dataclasses.replace(data.load(config), start_step=start_step)


def batches(images, count, context=None):
    context = context or tf.distribute.InputContext()
    return list(images.training_batches(context).take(count).as_numpy_iterator())


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "replicas"), [(2, 4), (4, 4)])
def test_the_parts_of_all_hosts_are_the_batch(folder, hosts, replicas):
    steps = 6  # two epochs
    images = load(folder)
    whole = batches(images, steps)
    parts = []
    for host in range(hosts):
        context = tf.distribute.InputContext(hosts, host, replicas)
        parts.append(batches(images, steps * replicas // hosts, context))
        assert parts[-1][0].shape == (4 // replicas, 64, 64, 3)
    together = np.reshape(parts, (hosts, steps, -1, 64, 64, 3)).swapaxes(0, 1)
    np.testing.assert_array_equal(together.reshape(steps, 4, 64, 64, 3), whole)


@pytest.mark.slow
@pytest.mark.parametrize("start", [2, 7])
def test_a_resumed_run_goes_on_where_it_was(folder, start):
    whole = batches(load(folder), 10)
    resumed = batches(load(folder, start), 10 - start)
    np.testing.assert_array_equal(whole[start:], resumed)
    second = tf.distribute.InputContext(2, 1, 2)
    resumed = batches(load(folder, start), 10 - start, second)
    np.testing.assert_array_equal(np.stack(whole[start:])[:, 2:], resumed)


def test_an_epoch_has_every_image_once_in_an_order_of_its_own(folder):
    every = data.load(Config(data_dir=folder)).training_split
    every = np.concatenate([every.read(i) for i in range(len(every.block_sizes))])
    epochs = 7  # more images than are read in parallel
    stream = np.concatenate(batches(load(folder, batch_size=1), epochs * IMAGES))
    assert len(stream) > shards.PARALLEL_READS
    first, second, *_ = each = np.split(stream, epochs)
    for epoch in each:
        assert archives.as_set(epoch) == archives.as_set(every)
        assert (epoch != every).any()
    assert (first != second).any()


def test_a_batch_that_replicas_cannot_share_is_refused(folder):
    with pytest.raises(ValueError, match="divisible"):
        load(folder).training_batches(tf.distribute.InputContext(3, 0, 3))


def test_shards_are_read_without_python(tmp_path):
    # A host of a TPU slice has the files and no program: the dataset must be a graph.
    archives.write_npz(tmp_path / "npz")
    convert(str(tmp_path / "npz"), str(tmp_path / "shards"), shards=2)

    def operations(folder):
        dataset = load(str(folder)).training_batches(tf.distribute.InputContext())
        variant = tf.data.experimental.to_variant(dataset)
        graph = tf.compat.v1.GraphDef()
        graph.ParseFromString(
            tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()
        )
        functions = [function.node_def for function in graph.library.function]
        return {node.op for nodes in (graph.node, *functions) for node in nodes}

    assert {"TFRecordDatasetV2", "PrefetchDataset"} <= operations(tmp_path / "shards")
    assert not any("Py" in op for op in operations(tmp_path / "shards"))
    assert any("Py" in op for op in operations(tmp_path / "npz"))


def test_a_host_reads_its_own_images_only(tmp_path):
    archives.write_npz(tmp_path / "npz", train=(16,))
    convert(str(tmp_path / "npz"), str(tmp_path / "shards"), shards=1)
    images = load(str(tmp_path / "shards"))
    own = set(archives.as_set(np.concatenate(batches(images, 4))[0::4]))
    # Damage what the first of four hosts does not read in the first epoch.
    path = tmp_path / "shards" / "train-00000-of-00001.tfrecord"
    content = bytearray(path.read_bytes())
    for first in range(0, len(content), shards.RECORD_BYTES):
        if bytes(content[first + 12 : first + 12 + 12288]) not in own:
            content[first + 100] ^= 1
    path.write_bytes(content)
    context = tf.distribute.InputContext(4, 0, 4)
    assert set(archives.as_set(np.concatenate(batches(images, 4, context)))) == own
    with pytest.raises(tf.errors.DataLossError):
        batches(images, 4)
