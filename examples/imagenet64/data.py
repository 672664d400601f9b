"""64x64 colour images from three kinds of places, behind one function: `load`.

1. Nothing to download: crops of the two photographs that scikit-learn ships.
2. A folder with ImageNet64, in either of its two versions. Their bits per dimension
   cannot be compared (the resized version is smoother and easier), so every
   `ImageData` carries a `name` that belongs beside each result.
3. A folder of TFRecord shards that `convert.py` wrote from 2; also on `gs://`.

The training order is a pure function of the seed: batch k is the same however often
and wherever it is asked for, so a resumed run passes `start_step` and sees exactly the
batches that the interrupted run would have seen. No file is read twice in an epoch and
one file (npz batch, shard, or 256 PNGs) is in memory at a time.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from examples.imagenet64.sources import IMAGE_SHAPE, SIDE, Split, open_folder

PHOTOGRAPHS = "64x64 crops of scikit-learn's sample photographs"


@dataclasses.dataclass(frozen=True)
class ImageData:
    """What `load` returns.

    Attributes:
        train: endless `tf.data.Dataset` of uint8 `[batch_size, 64, 64, 3]`.
        held_out: uint8 array `[n, 64, 64, 3]`, always the same images, n a multiple of
            the batch size, so that model and baselines see the same pixels.
        name: version of the data, to be printed beside every result.
        batch_size: int.
        training_split: a `Split` or `Crops`.
    """

    train: tf.data.Dataset
    held_out: np.ndarray
    name: str
    batch_size: int
    training_split: "Split | Crops"

    @property
    def held_out_batches(self):
        """The held-out images as a finite `tf.data.Dataset` of full batches."""
        dataset = tf.data.Dataset.from_tensor_slices(self.held_out)
        return _share(dataset.batch(self.batch_size, drop_remainder=True))

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

    def shuffled(self, seed, start=0) -> Iterator[np.ndarray]:
        index = start
        while True:
            random = np.random.default_rng((seed, index))
            region = self.regions[random.integers(len(self.regions))]
            top = random.integers(region.shape[0] - SIDE + 1)
            left = random.integers(region.shape[1] - SIDE + 1)
            yield region[top : top + SIDE, left : left + SIDE]
            index += 1


def load(config, start_step=0):
    """Opens the images that `config` names.

    Args:
        config: has `data_dir` (None: the photographs), `seed`, `batch_size` and
            `held_out_images` (at most so many are held out).
        start_step: int k, the first training batch is batch k; or a function without
            arguments that returns k when the training data is first read.

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
    first_step = start_step if callable(start_step) else lambda: start_step
    dataset = tf.data.Dataset.from_generator(
        lambda: train.shuffled(config.seed, first_step() * config.batch_size),
        output_signature=tf.TensorSpec(IMAGE_SHAPE, tf.uint8),
    )
    dataset = dataset.batch(config.batch_size, drop_remainder=True)
    return ImageData(
        train=_share(dataset.prefetch(tf.data.AUTOTUNE)),
        held_out=validation.evenly_spaced(count),
        name=name,
        batch_size=config.batch_size,
        training_split=train,
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


def _share(dataset):
    """Under a distribution strategy each replica takes its part of every batch."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )
    return dataset.with_options(options)
