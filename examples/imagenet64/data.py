"""64x64 colour images from three kinds of places, behind one function: `load`.

1. Nothing to download: crops of the two photographs that scikit-learn ships.
2. A folder with ImageNet64, in either of its two versions. Their bits per dimension
   cannot be compared (the resized version is smoother and easier), so every
   `ImageData` carries a `name` that belongs beside each result.
3. A folder of TFRecord shards that `convert.py` wrote from 2; also on `gs://`.

The training order is a pure function of the seed: batch k is the same however often
and wherever it is asked for, so a resumed run passes `start_step` and sees exactly the
batches that the interrupted run would have seen. Several hosts divide each batch among
themselves: together they train on the batches of one host.

For 1 and 2 every host reads all files, in Python, one file (npz batch or 256 PNGs) at a
time. For 3 a host reads only its own images, in parallel and without Python.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from examples.imagenet64.sources import open_folder
from examples.imagenet64.splits import SIDE, Split, from_python

PHOTOGRAPHS = "64x64 crops of scikit-learn's sample photographs"


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Data that `load` returns.

    Attributes:
        held_out: uint8 array `[n, 64, 64, 3]`, always the same images, n a multiple of
            the batch size, so that model and baselines see the same pixels.
        name: version of the data, to be printed beside every result.
        batch_size: int, over all replicas together.
        training_split: a `Split` or `Crops`.
        seed: int, of the order of the training images.
        start_step: int k, the first training batch is batch k.
    """

    held_out: np.ndarray
    name: str
    batch_size: int
    training_split: "Split | Crops"
    seed: int
    start_step: int = 0

    @property
    def train(self):
        """Endless `tf.data.Dataset` of uint8 `[batch_size, 64, 64, 3]`."""
        return self.training_batches(tf.distribute.InputContext())

    def training_batches(self, context):
        """The part of every training batch that one host reads.

        Args:
            context: `tf.distribute.InputContext`, which host this is; from
                `strategy.distribute_datasets_from_function`.

        Returns:
            Endless `tf.data.Dataset` of uint8 `[n, 64, 64, 3]`, n a replica's part of
            the batch. Replica after replica, host after host, they form the batch.
        """
        part = self.batch_size // context.num_input_pipelines
        first = context.input_pipeline_id * part

        def share(stream):
            batches = stream.batch(self.batch_size, drop_remainder=True)
            return batches.map(lambda batch: batch[first : first + part]).unbatch()

        start = self.start_step * self.batch_size
        images = self.training_split.stream(self.seed, start, share)
        size = context.get_per_replica_batch_size(self.batch_size)
        return images.batch(size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    @property
    def held_out_batches(self):
        """The held-out images as a finite `tf.data.Dataset` of full batches."""
        dataset = tf.data.Dataset.from_tensor_slices(self.held_out)
        dataset = dataset.batch(self.batch_size, drop_remainder=True)
        # Under a distribution strategy each replica takes its part of every batch.
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options)

    @property
    def training_pixels(self):
        """uint8 `[n, 3]`: all of the photographs, or those of up to 4096 images."""
        return self.training_split.pixels()


@dataclasses.dataclass(frozen=True)
class Crops:
    """Random crops of large pictures, as an endless training split."""

    regions: list[np.ndarray]

    def pixels(self):
        return np.concatenate([region.reshape(-1, 3) for region in self.regions])

    def stream(self, seed, start, share):
        return share(from_python(lambda: self.shuffled(seed, start)))

    def shuffled(self, seed, start=0) -> Iterator[np.ndarray]:
        index = start
        while True:
            random = np.random.default_rng((seed, index))
            region = self.regions[random.integers(len(self.regions))]
            top = random.integers(region.shape[0] - SIDE + 1)
            left = random.integers(region.shape[1] - SIDE + 1)
            yield region[top : top + SIDE, left : left + SIDE]
            index += 1


def load(config):
    """Opens the images that `config` names.

    Args:
        config: has `data_dir` (None: the photographs), `seed`, `batch_size` and
            `held_out_images` (at most so many are held out).

    Returns:
        An `ImageData`.
    """
    if config.data_dir is None:
        name, (train, validation) = PHOTOGRAPHS, photographs()
    else:
        name, train, validation = open_folder(config.data_dir)
    count = min(config.held_out_images, len(validation))
    count -= count % config.batch_size
    if count == 0:
        raise ValueError(
            "batch_size must be at most the number of held-out images: "
            f"{len(validation)} exist and held_out_images={config.held_out_images}. "
            f"Received: batch_size={config.batch_size}"
        )
    if count < len(validation):
        name = f"{name}, {count} of its {len(validation)} held-out images"
    return ImageData(
        held_out=validation.evenly_spaced(count),
        name=name,
        batch_size=config.batch_size,
        training_split=train,
        seed=config.seed,
    )


def photographs():
    """Training crops from the left 80 % of each photograph, held out from the rest.

    Returns:
        `(Crops, Split)`; the held-out crops form a grid and do not overlap.
    """
    from sklearn.datasets import load_sample_images

    regions, grid = [], []
    for picture in load_sample_images().images:
        height, width, _ = picture.shape
        border = int(0.8 * width)
        regions.append(picture[:, :border])
        for top in range(0, height - SIDE + 1, SIDE):
            for left in range(border, width - SIDE + 1, SIDE):
                grid.append(picture[top : top + SIDE, left : left + SIDE])
    grid = np.stack(grid)
    return Crops(regions), Split([len(grid)], lambda block: grid)
