"""64x64 colour images of three kinds: photographs, ImageNet64 and shards of it.

Bits per dimension of the two versions of ImageNet64 cannot be compared (the resized
version is smoother and easier), so print the `name` of `ImageData` with each result.

The training order is a pure function of the seed: batch k is the same in every run and
on every host. A resumed run passes `start_step` and sees exactly the batches that the
interrupted run would have seen. Several hosts divide each batch among themselves:
together they train on the batches of one host.

Every host reads all npz or PNG files in Python, one block (an npz file or 256 PNGs) at
a time. Of shards, it reads only its own images, in parallel and without Python.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from examples.imagenet64.sources import SIDE, Split, open_folder

PHOTOGRAPHS = "64x64 crops of scikit-learn's sample photographs"


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Images to train on, and images `[n, 64, 64, 3]` that are always held out.

    n is a multiple of the batch size, so that model and baselines see the same pixels.
    """

    held_out: np.ndarray
    name: str  # version of the data, to print with each result
    batch_size: int  # over all replicas together
    training_split: "Split | Crops"
    seed: int  # determines the order of training images
    start_step: int = 0  # the number of the first training batch

    @property
    def train(self):
        """Endless `tf.data.Dataset` of uint8 `[batch_size, 64, 64, 3]`."""
        return self.training_batches(tf.distribute.InputContext())

    def training_batches(self, context):
        """Returns the part of training batches for the host of an `InputContext`.

        The dataset is endless, of uint8 `[n, 64, 64, 3]` for one replica each. The
        parts of all replicas, host after host, form the batch.
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
        """All pixels of the photographs, or of up to 4096 images: uint8 `[n, 3]`."""
        return self.training_split.pixels()


@dataclasses.dataclass(frozen=True)
class Crops:
    """Random crops of large pictures, as an endless training split."""

    regions: list[np.ndarray]

    def pixels(self):
        return np.concatenate([region.reshape(-1, 3) for region in self.regions])

    stream = Split.stream

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
    """Opens the images that `config` names, as `ImageData`."""
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
    """Returns training crops of the left 80 % of photographs, and a held-out grid."""
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
