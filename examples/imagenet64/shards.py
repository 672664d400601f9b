"""TFRecord shards as one long list of images, any of which can be read by its number.

All records have the same size, so the place of a record in its file is known, and an
epoch is a permutation of numbers: shuffled over the whole data set without a buffer of
images, started anywhere at once, and divided among hosts by dividing the numbers. The
files are opened and read by tf.data itself, also on hosts that run no Python.
"""

import dataclasses
import json

import numpy as np
import tensorflow as tf

from examples.imagenet64 import splits

MANIFEST = "dataset.json"
RECORD_BYTES = splits.IMAGE_BYTES + 16  # TFRecord adds the length and two checksums
# Records read at a time, each by its own request to a file or to Cloud Storage. If one
# takes 50 ms, 64 are 1280 images a second.
PARALLEL_READS = 64


@dataclasses.dataclass(frozen=True)
class Shards(splits.Split):
    """A `Split` whose blocks are shards."""

    paths: list[str] = ()

    def stream(self, seed, start, share):
        ends = np.cumsum(self.block_sizes)
        starts = tf.constant(ends - self.block_sizes)
        ends, paths = tf.constant(ends), tf.constant(self.paths)

        def record(number):
            shard = tf.searchsorted(ends, number[tf.newaxis], side="right")
            first = tf.gather(starts, shard)
            variant = tf.raw_ops.TFRecordDatasetV2(
                filenames=tf.gather(paths, shard),
                compression_type="",
                buffer_size=tf.constant(RECORD_BYTES, tf.int64),
                byte_offsets=(number - first) * RECORD_BYTES,
            )
            spec = tf.TensorSpec([], tf.string)
            return tf.data.experimental.from_variant(variant, spec).take(1)

        def decode(content):
            return tf.reshape(tf.io.decode_raw(content, tf.uint8), splits.IMAGE_SHAPE)

        numbers = share(_numbers(len(self), seed, start))
        return numbers.interleave(
            record, PARALLEL_READS, num_parallel_calls=PARALLEL_READS
        ).map(decode)


def _numbers(count, seed, start):
    """Endless epochs of 0 to count - 1, each in an order of its own."""

    def epoch(index):
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), tf.stack([seed, index])
        )
        return tf.data.Dataset.from_tensor_slices(order)

    first_epoch, skip = divmod(start, count)
    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
    return epochs.flat_map(epoch).skip(skip)


def open_shards(manifest):
    """Opens what `convert.py` wrote.

    Args:
        manifest: str, path of `dataset.json`.

    Returns:
        `(name, train Shards, validation Shards)`.
    """
    folder = manifest.rpartition("/")[0]
    try:
        with tf.io.gfile.GFile(manifest) as file:
            described = json.load(file)
        name, shape = described["name"], tuple(described["image_shape"])
        both = [dict(described[split]) for split in ("train", "validation")]
        if not all(sum(shards.values()) > 0 for shards in both):
            raise ValueError("a split has no images")
    except (ValueError, TypeError, KeyError) as error:
        what = f"not written by convert.py ({error!r})"
        raise splits.unusable(manifest, what) from error
    if shape != splits.IMAGE_SHAPE:
        what = f"images must be {splits.IMAGE_SHAPE}, these are {shape}"
        raise splits.unusable(manifest, what)
    for shards in both:
        for shard, count in shards.items():
            _check_size(f"{folder}/{shard}", count * RECORD_BYTES)
    return name, *(_open_split(folder, shards) for shards in both)


def _check_size(path, expected):
    if not tf.io.gfile.exists(path):
        raise splits.unusable(path, "this shard is missing")
    size = tf.io.gfile.stat(path).length
    if size != expected:
        what = f"this shard must have {expected} bytes but has {size}"
        raise splits.unusable(path, what)


def _open_split(folder, shards):
    paths = [f"{folder}/{shard}" for shard in shards]

    def read(block):
        try:
            records = tf.data.TFRecordDataset(paths[block]).batch(1024)
            parts = [b"".join(part) for part in records.as_numpy_iterator()]
            images = np.frombuffer(b"".join(parts), "uint8")
            return images.reshape(-1, *splits.IMAGE_SHAPE)
        except (tf.errors.DataLossError, ValueError) as error:
            what = f"this shard is corrupt ({error})"
            raise splits.unusable(paths[block], what) from error

    return Shards(list(shards.values()), read, paths)
