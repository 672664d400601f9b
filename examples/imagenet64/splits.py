"""Common code of all sources of 64x64 images: a `Split` that is read in blocks."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

SIDE = 64
IMAGE_SHAPE = (SIDE, SIDE, 3)
IMAGE_BYTES = SIDE * SIDE * 3
RESIZED = "ImageNet64, resized (Chrabaszcz et al. 2017)"
ORIGINAL = "ImageNet64, original (van den Oord et al. 2016)"
EXPECTED = f"""
data_dir must be a folder that holds one of
  - {RESIZED}: train_data_batch_1.npz to train_data_batch_10.npz and val_data.npz,
    from the files Imagenet64_train_part1_npz.zip, Imagenet64_train_part2_npz.zip and
    Imagenet64_val_npz.zip
  - {ORIGINAL}: train_64x64 and valid_64x64, as .tar files or as folders of PNG files
  - dataset.json and the .tfrecord shards beside it, which
    `python -m examples.imagenet64.convert` writes from one of the two above
Both versions come from https://image-net.org/download-images (free, after logging in);
the first is described at https://patrykchrabaszcz.github.io/Imagenet32. Leave data_dir
out to use the photographs that scikit-learn ships, which need no download."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Images in blocks; a block is what is read into memory at once."""

    block_sizes: list[int]
    read: Callable[[int], np.ndarray]  # block -> uint8 [n, 64, 64, 3]

    def __len__(self):
        return sum(self.block_sizes)

    def shuffled(self, seed, start=0) -> Iterator[np.ndarray]:
        """Endless shuffled images, from the `start`-th on; earlier ones are not read.

        Each epoch shuffles the blocks, and the images inside each block.
        """
        epoch, skip = divmod(start, len(self))
        while True:
            blocks = np.random.default_rng((seed, epoch))
            for block in blocks.permutation(len(self.block_sizes)).tolist():
                size = self.block_sizes[block]
                if skip >= size:
                    skip -= size
                    continue
                order = np.random.default_rng((seed, epoch, block)).permutation(size)
                images = self.read(block)
                for index in order[skip:]:
                    yield np.ascontiguousarray(images[index])
                images, skip = None, 0  # before the next block comes into memory
            epoch += 1

    def stream(self, seed, start, share):
        """Endless shuffled images as a dataset, from the `start`-th on.

        Args:
            seed: int; the order is a pure function of it.
            start: int, the number of earlier images.
            share: function from a dataset to the part of it that this host reads.

        Returns:
            `tf.data.Dataset` of uint8 `[64, 64, 3]`.
        """
        return share(from_python(lambda: self.shuffled(seed, start)))

    def read_all(self):
        """Reads everything once; a file that is broken is named by the error."""
        for block in range(len(self.block_sizes)):
            self.read(block)

    def pixels(self):
        """uint8 `[n, 3]`, the pixels of up to 4096 images of the first block."""
        return self.read(0)[:4096].reshape(-1, 3)

    def evenly_spaced(self, count):
        """`count` images spread evenly over the split: always the same ones."""
        wanted = np.linspace(0, len(self) - 1, count).round().astype(int)
        first, parts = 0, []
        for block, size in enumerate(self.block_sizes):
            here = wanted[(wanted >= first) & (wanted < first + size)] - first
            if len(here):
                parts.append(np.ascontiguousarray(self.read(block)[here]))
            first += size
        return np.concatenate(parts)


def from_python(images):
    """The images of a generator function as a dataset."""
    spec = tf.TensorSpec(IMAGE_SHAPE, tf.uint8)
    return tf.data.Dataset.from_generator(images, output_signature=spec)


def unusable(path, what):
    """The error that says what is wrong with `path` and what was expected."""
    return ValueError(f"{path} cannot be used: {what}.{EXPECTED}")
