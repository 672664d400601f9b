"""Made-up ImageNet64 archives in the formats of the real ones."""

import io
import tarfile

import numpy as np
from PIL import Image


def make_images(count, seed=0):
    """Smooth enough for PNG to gain, different in every pixel and channel."""
    random = np.random.default_rng(seed)
    start = random.integers(0, 256, (count, 1, 1, 3))
    step = random.integers(1, 4, (count, 2, 3))
    place = np.arange(64)
    images = (
        start
        + place[:, None, None] * step[:, None, None, 0]
        + place[:, None] * step[:, None, None, 1]
    )
    return (images % 256).astype(np.uint8)


def write_npz(folder, train=(5, 3), validation=4):
    """Two training files and one for validation, channel by channel.

    Returns:
        `(training images, validation images)`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [make_images(count, seed) for seed, count in enumerate(train)]
    for index, images in enumerate(parts, start=1):
        _save(folder / f"train_data_batch_{index}.npz", images)
    held_out = make_images(validation, seed=100)
    _save(folder / "val_data.npz", held_out)
    return np.concatenate(parts), held_out


def _save(path, images):
    data = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    np.savez(path, data=data, labels=np.arange(1, len(images) + 1))


def write_pngs(folder, train=6, validation=3, tar=False):
    """Returns `(training images, validation images)`."""
    folder.mkdir(parents=True, exist_ok=True)
    both = make_images(train, seed=1), make_images(validation, seed=101)
    for name, images in zip(("train_64x64", "valid_64x64"), both, strict=True):
        if tar:
            with tarfile.open(folder / f"{name}.tar", "w") as archive:
                for index, image in enumerate(images):
                    content = _png(image)
                    member = tarfile.TarInfo(f"{name}/{index:07d}.png")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        else:
            (folder / name).mkdir()
            for index, image in enumerate(images):
                (folder / name / f"{index:07d}.png").write_bytes(_png(image))
    return both


def _png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="png")
    return file.getvalue()


def as_set(images):
    """Images without their order."""
    return sorted(np.asarray(image).tobytes() for image in images)
