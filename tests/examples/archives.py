"""Made-up ImageNet64 archives in the formats of the real ones."""

import shutil
import tarfile

import numpy as np
from PIL import Image


def make_images(count, seed=0):
    """Returns images that PNG compresses, with different pixels and channels."""
    random = np.random.default_rng(seed)
    start = random.integers(0, 256, (count, 1, 1, 3))
    step = random.integers(1, 4, (count, 2, 3))
    place = np.arange(64)
    rows = place[:, None, None] * step[:, None, None, 0]
    columns = place[:, None] * step[:, None, None, 1]
    return ((start + rows + columns) % 256).astype(np.uint8)


def write_npz(folder, train=(5, 3)):
    """Writes two training files and one for validation, channel by channel.

    Returns:
        `(training images, validation images)`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [make_images(count, seed) for seed, count in enumerate(train)]
    names = [f"train_data_batch_{index + 1}" for index in range(len(parts))]
    held_out = make_images(4, seed=100)
    for name, images in zip([*names, "val_data"], [*parts, held_out]):
        data = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        np.savez(folder / f"{name}.npz", data=data, labels=np.arange(len(images)))
    return np.concatenate(parts), held_out


def write_pngs(folder, train=6, tar=False):
    """Writes PNG files, and returns `(training images, validation images)`."""
    both = make_images(train, seed=1), make_images(3, seed=101)
    for name, images in zip(("train_64x64", "valid_64x64"), both, strict=True):
        (folder / name).mkdir(parents=True)
        for index, image in enumerate(images):
            Image.fromarray(image).save(folder / name / f"{index:07d}.png")
        if tar:
            with tarfile.open(folder / f"{name}.tar", "w") as archive:
                archive.add(folder / name, name)
            shutil.rmtree(folder / name)
    return both


def as_set(images):
    """Returns images in an order that does not depend on their given order."""
    return sorted(np.asarray(image).tobytes() for image in images)
