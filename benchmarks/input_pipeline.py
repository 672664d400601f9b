"""Measures images a second that the example's TFRecord pipeline gives to one host.

    python -m benchmarks.input_pipeline

Writes made-up images as TFRecords into a temporary folder, and reads them as one host
of 1, 2 and 4 would: one after another, on this machine, from its disk or page cache.
The speed of Cloud Storage is not measured.
"""

import pathlib
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.tables import table
from examples.imagenet64 import convert, data
from examples.imagenet64 import model as image_model
from examples.imagenet64.config import Config


def main(argv=None):
    options = runner.options(
        __doc__, argv, number=20_000, shards=16, batch_size=128, seconds=5.0, repeats=3
    )
    batch_size, lines = options.batch_size, []
    with tempfile.TemporaryDirectory() as folder:
        folder = write(pathlib.Path(folder), options.number, batch_size, options.shards)
        images = data.load(
            Config(data_dir=folder, batch_size=batch_size, held_out_images=batch_size)
        )
        for hosts in (1, 2, 4):
            found = [
                images_read(images, hosts, options.seconds)
                for _ in range(options.repeats)
            ]
            cells = (f"{of(found):,.0f}" for of in (statistics.median, min, max))
            lines.append([hosts, *cells])
    print(vars(options), runner.describe(None), f"TensorFlow {tf.__version__}")
    print(table(["hosts", "images/s of one, median", "least", "most"], lines))


def images_read(images, hosts, seconds):
    """Measures images a second that the first of several hosts reads."""
    context = tf.distribute.InputContext(hosts, 0, hosts)
    batches = iter(images.training_batches(context).map(image_model.shift))
    next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        count += next(batches)[0].shape[0]
    return count / (time.perf_counter() - start)


def write(folder, number, held_out, shards):
    """Writes made-up images as TFRecords to `folder/shards`; returns this folder."""
    random = np.random.default_rng(0)
    for name, count in {"train_data_batch_1": number, "val_data": held_out}.items():
        pixels = random.integers(0, 256, (count, 12288), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", data=pixels)
    convert.convert(str(folder), str(folder / "shards"), shards)
    return str(folder / "shards")


if __name__ == "__main__":
    main()
