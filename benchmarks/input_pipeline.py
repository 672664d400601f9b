"""Measures images a second that the example's TFRecord pipeline gives to one host.

    python -m benchmarks.input_pipeline

Writes made-up images as TFRecords into a temporary folder, and reads them as one host
of 1, 2 and 4 would: one after another, on this machine, from its disk or page cache.
Also prints the upper limit of images that the chips of one host can use, if every chip
only computes matrix products at its specified peak. No chip reaches the limit, so a
faster pipeline is fast enough. The speed of Cloud Storage is not measured.
"""

import pathlib
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

from benchmarks import runner
from benchmarks.tables import table
from benchmarks.tpu.table import read as read_config
from examples.imagenet64 import convert, data
from examples.imagenet64 import model as image_model
from examples.imagenet64.config import Config

# Peak bfloat16 FLOP/s of a chip: docs.cloud.google.com/tpu/docs/v4, v5e, v5p and v6e.
PEAK = {"v4": 275e12, "v5e": 197e12, "v5p": 459e12, "v6e": 918e12}
# Chips of one host.
CHIPS = {"v5e-1": 1, "v5e-4": 4, "v5e-8": 8, "v4-8": 4, "v4-32": 4, "v5p-8": 4}
CHIPS["v6e-8"] = 8


def main(argv=None):
    options = runner.options(
        __doc__, argv, number=20_000, shards=16, batch_size=128, seconds=5.0, repeats=3
    )
    batch_size = options.batch_size
    with tempfile.TemporaryDirectory() as folder:
        folder = write(pathlib.Path(folder), options.number, batch_size, options.shards)
        images = data.load(
            Config(data_dir=folder, batch_size=batch_size, held_out_images=batch_size)
        )
        speeds = {
            hosts: [
                images_read(images, hosts, options.seconds)
                for _ in range(options.repeats)
            ]
            for hosts in (1, 2, 4)
        }
    read = [
        [hosts, *(f"{of(found):,.0f}" for of in (statistics.median, min, max))]
        for hosts, found in speeds.items()
    ]
    slowest = min(map(statistics.median, speeds.values()))
    used = {name: images_used(name) for name in CHIPS}
    lines = [
        [name, CHIPS[name], f"{most:,.0f}", f"{slowest / most:.1f}"]
        for name, most in used.items()
    ]
    print(vars(options), runner.describe(None), f"TensorFlow {tf.__version__}")
    print(table(["hosts", "images/s of one, median", "least", "most"], read))
    header = ["slice", "chips of a host", "images/s used at most", "read / used"]
    print(table(header, lines))


def flops_per_image(config):
    """Returns FLOP of a training step on one image, in products with weights only.

    The product of a token and a matrix of n weights takes 2n FLOP, and its gradients
    4n. Attention is omitted, so chips seem faster than they are.
    """
    model = image_model.make(config)
    layers = [*model.blocks, model.head]
    weights = [w for part in layers for w in part.trainable_weights]
    matrices = [int(np.prod(w.shape)) for w in weights if w.name == "kernel"]
    return 6 * image_model.LENGTH * sum(matrices)


def images_used(name):
    """Returns the most images a second that the chips of one host can use."""
    chips = CHIPS[name] * PEAK[name.split("-")[0]]
    return chips / flops_per_image(read_config(name))


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
