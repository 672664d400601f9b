"""Opens ImageNet64 in the forms in which people have it on disk.

A `Split` is a list of blocks (one npz file, one shard, 256 PNG files); one block is in
memory at a time. What can be checked without reading the pixels (presence, sizes,
shapes, dtypes) is checked when the folder is opened, the rest when a block is read.
"""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from examples.imagenet64 import shards
from examples.imagenet64.splits import (
    EXPECTED,
    IMAGE_BYTES,
    IMAGE_SHAPE,
    ORIGINAL,
    RESIZED,
    SIDE,
    Split,
    unusable,
)

PNG_BLOCK = 256


def open_folder(folder):
    """Finds out what `folder` holds and opens it.

    Args:
        folder: str or path.

    Returns:
        `(name, train Split, validation Split)`.
    """
    manifest = f"{str(folder).rstrip('/')}/{shards.MANIFEST}"
    if tf.io.gfile.exists(manifest):
        return shards.open_shards(manifest)
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.{EXPECTED}")
    # The zip files unpack into a folder each, hence the second pattern.
    npz = {p.name: p for g in ("*.npz", "*/*.npz") for p in sorted(folder.glob(g))}
    batches = [n for i in range(1, 11) if (n := f"train_data_batch_{i}.npz") in npz]
    if batches or "val_data.npz" in npz:
        return _open_npz(folder, npz, batches)
    train, valid = (_archive(folder, n) for n in ("train_64x64", "valid_64x64"))
    if train or valid:
        if not (train and valid):
            raise unusable(folder, "train_64x64 and valid_64x64 are both needed")
        return ORIGINAL, _open_pngs(train), _open_pngs(valid)
    entries = sorted(path.name for path in folder.iterdir())
    if any(name.endswith(".zip") for name in entries):
        raise unusable(folder, "unpack its .zip files first")
    found = ", ".join(entries[:5]) + (", ..." if len(entries) > 5 else "")
    raise unusable(folder, f"it holds {found or 'nothing'}")


def _open_npz(folder, npz, batches):
    if not batches or "val_data.npz" not in npz:
        missing = "val_data.npz" if batches else "train_data_batch_1.npz to _10.npz"
        raise unusable(folder, f"{missing} not found")
    name = RESIZED
    if len(batches) < 10:
        name = f"{name}, {len(batches)} of its 10 training files"
    train = _npz_split([npz[batch] for batch in batches])
    return name, train, _npz_split([npz["val_data.npz"]])


def _npz_split(paths):
    def read(block):
        try:
            with np.load(paths[block], allow_pickle=False) as file:
                planes = file["data"].reshape(-1, 3, SIDE, SIDE)
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise unusable(paths[block], f"cannot be read ({error})") from error
        return planes.transpose(0, 2, 3, 1)  # a view: [n, row, column, channel]

    return Split([_npz_count(path) for path in paths], read)


def _npz_count(path):
    """Number of images, from the header alone: a file holds more than a gigabyte."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("data.npy") as file:
            version = np.lib.format.read_magic(file)
            header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, fortran_order, dtype = header(file)
    except (KeyError, ValueError, OSError, AttributeError, zipfile.BadZipFile) as error:
        what = f"must be an npz file with an array 'data' ({error!r})"
        raise unusable(path, what) from error
    if len(shape) != 2 or shape[1] != IMAGE_BYTES or not shape[0] or dtype != np.uint8:
        what = f"'data' must be uint8 [n, {IMAGE_BYTES}] but is {dtype} {list(shape)}"
        raise unusable(path, what)
    if fortran_order:
        raise unusable(path, "'data' must be in C order")
    return shape[0]


def _archive(folder, name):
    """`name` as a folder, or as a tar file, or None."""
    paths = folder / name, folder / f"{name}.tar"
    return next((path for path in paths if path.exists()), None)


def _open_pngs(path):
    if path.is_dir():
        # Unpacking the tar file inside a folder of the same name gives a second level.
        files = sorted(path.glob("*.png")) or sorted(path.glob("*/*.png"))
    else:
        try:
            with tarfile.open(path, "r:") as archive:
                files = [m for m in archive if m.isfile() and m.name.endswith(".png")]
        except (tarfile.TarError, OSError) as error:
            raise unusable(path, f"cannot be read as a tar file ({error})") from error
        files.sort(key=lambda member: member.name)
    if not files:
        raise unusable(path, "it holds no PNG file")
    _read_png(path, files[0])
    # A fixed shuffle, lest a block hold neighbours only, should the names be in order.
    order = np.random.default_rng(0).permutation(len(files))
    blocks = np.split(order, range(PNG_BLOCK, len(files), PNG_BLOCK))
    return Split(
        [len(block) for block in blocks],
        lambda block: np.stack([_read_png(path, files[i]) for i in blocks[block]]),
    )


def _read_png(path, file):
    """One picture; `file` is a path, or a member of the tar file `path`."""
    from PIL import Image

    if isinstance(file, tarfile.TarInfo):
        with open(path, "rb") as archive:
            archive.seek(file.offset_data)
            content = archive.read(file.size)
        file = f"{path}:{file.name}"
    else:
        content = file.read_bytes()
    try:
        with Image.open(io.BytesIO(content)) as image:
            mode, pixels = image.mode, np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise unusable(file, f"cannot be read as a PNG file ({error})") from error
    if mode == "L":
        pixels = np.repeat(pixels[..., np.newaxis], 3, axis=-1)
    if mode not in ("L", "RGB") or pixels.shape != IMAGE_SHAPE:
        what = f"must be a 64x64 RGB picture but is {mode} {list(pixels.shape)}"
        raise unusable(file, what)
    return pixels
