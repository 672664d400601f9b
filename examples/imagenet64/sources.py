"""Opens 64x64 images in the file formats of ImageNet64, and as TFRecord shards.

A `Split` is a list of blocks (one npz file, one shard, 256 PNG files); one block is in
memory at a time. Opening a folder checks everything that needs no pixels (presence,
sizes, shapes, dtypes); reading a block checks the rest.

All records of TFRecord shards have the same size, so the number of a record gives its
position in a file, and an epoch is a permutation of numbers. So an epoch shuffles the
whole data set without a buffer of images, can start at any record, and is divided among
hosts by dividing the numbers. tf.data opens and reads the files itself, also on hosts
that run no Python.
"""

import dataclasses
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

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
  - dataset.json and the .tfrecord shards in the same folder, which
    `python -m examples.imagenet64.convert` writes from one of the two above
Both versions come from https://image-net.org/download-images (free, after logging in);
the first is described at https://patrykchrabaszcz.github.io/Imagenet32. Leave data_dir
out to use the photographs that scikit-learn ships, which need no download."""
PNG_BLOCK = 256
MANIFEST = "dataset.json"
RECORD_BYTES = IMAGE_BYTES + 16  # TFRecord adds the length and two checksums
# Records read in parallel, each by its own request to a file or to Cloud Storage. If a
# request takes 50 ms, 64 read 1280 images a second.
PARALLEL_READS = 64


@dataclasses.dataclass(frozen=True)
class Split:
    """Images in blocks; one block is read into memory at a time."""

    block_sizes: list[int]
    read: Callable[[int], np.ndarray]  # block -> uint8 [n, 64, 64, 3]

    def __len__(self):
        return sum(self.block_sizes)

    def shuffled(self, seed, start=0) -> Iterator[np.ndarray]:
        """Yields endless shuffled images from the `start`-th on; skips earlier blocks.

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
        """Returns a dataset of endless shuffled images, from the `start`-th on.

        `share` is a function from a dataset to the part of it that this host reads.
        """
        spec = tf.TensorSpec(IMAGE_SHAPE, tf.uint8)
        images = tf.data.Dataset.from_generator(
            lambda: self.shuffled(seed, start), output_signature=spec
        )
        return share(images)

    def read_all(self):
        """Reads everything once; raises an error that names a broken file."""
        for block in range(len(self.block_sizes)):
            self.read(block)

    def pixels(self):
        """Returns pixels of up to 4096 images of the first block, uint8 `[n, 3]`."""
        return self.read(0)[:4096].reshape(-1, 3)

    def evenly_spaced(self, count):
        """Returns `count` images spread evenly over the split, always the same ones."""
        wanted = np.linspace(0, len(self) - 1, count).round().astype(int)
        first, parts = 0, []
        for block, size in enumerate(self.block_sizes):
            here = wanted[(wanted >= first) & (wanted < first + size)] - first
            if len(here):
                parts.append(np.ascontiguousarray(self.read(block)[here]))
            first += size
        return np.concatenate(parts)


def unusable(path, what):
    """Returns an error with the problem of `path` and the expected files."""
    return ValueError(f"{path} cannot be used: {what}.{EXPECTED}")


@dataclasses.dataclass(frozen=True)
class Shards(Split):
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
            return tf.reshape(tf.io.decode_raw(content, tf.uint8), IMAGE_SHAPE)

        numbers = share(_numbers(len(self), seed, start))
        return numbers.interleave(
            record, PARALLEL_READS, num_parallel_calls=PARALLEL_READS
        ).map(decode)


def _numbers(count, seed, start):
    """Returns a dataset of endless epochs of 0 to count - 1, each in a new order."""

    def epoch(index):
        order = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), tf.stack([seed, index])
        )
        return tf.data.Dataset.from_tensor_slices(order)

    first_epoch, skip = divmod(start, count)
    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
    return epochs.flat_map(epoch).skip(skip)


def open_shards(manifest):
    """Opens the shards that `convert.py` wrote, by the path of their `dataset.json`."""
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
        raise unusable(manifest, what) from error
    if shape != IMAGE_SHAPE:
        what = f"images must be {IMAGE_SHAPE}, these are {shape}"
        raise unusable(manifest, what)
    for shards in both:
        for shard, count in shards.items():
            path, expected = f"{folder}/{shard}", count * RECORD_BYTES
            if not tf.io.gfile.exists(path):
                raise unusable(path, "this shard is missing")
            size = tf.io.gfile.stat(path).length
            if size != expected:
                what = f"this shard must have {expected} bytes but has {size}"
                raise unusable(path, what)
    return name, *(_open_split(folder, shards) for shards in both)


def _open_split(folder, shards):
    paths = [f"{folder}/{shard}" for shard in shards]

    def read(block):
        try:
            records = tf.data.TFRecordDataset(paths[block]).batch(1024)
            parts = [b"".join(part) for part in records.as_numpy_iterator()]
            images = np.frombuffer(b"".join(parts), "uint8")
            return images.reshape(-1, *IMAGE_SHAPE)
        except (tf.errors.DataLossError, ValueError) as error:
            what = f"this shard is corrupt ({error})"
            raise unusable(paths[block], what) from error

    return Shards(list(shards.values()), read, paths)


def open_folder(folder):
    """Opens the data set in a folder: `(name, train Split, validation Split)`."""
    manifest = f"{str(folder).rstrip('/')}/{MANIFEST}"
    if tf.io.gfile.exists(manifest):
        return open_shards(manifest)
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}.{EXPECTED}")
    # The zip files unpack into a folder each, hence the second pattern.
    npz = {p.name: p for g in ("*.npz", "*/*.npz") for p in sorted(folder.glob(g))}
    batches = [n for i in range(1, 11) if (n := f"train_data_batch_{i}.npz") in npz]
    if batches or "val_data.npz" in npz:
        return _open_npz(folder, npz, batches)
    archives = [
        next(filter(Path.exists, (folder / name, folder / f"{name}.tar")), None)
        for name in ("train_64x64", "valid_64x64")
    ]
    if all(archives):
        return ORIGINAL, *map(_open_pngs, archives)
    if any(archives):
        raise unusable(folder, "train_64x64 and valid_64x64 are both needed")
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
    """Reads the number of images from the header: a file has more than a gigabyte."""
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
    # A fixed shuffle, so that blocks are mixed even if file names sort similar images.
    order = np.random.default_rng(0).permutation(len(files))
    blocks = np.split(order, range(PNG_BLOCK, len(files), PNG_BLOCK))
    return Split(
        [len(block) for block in blocks],
        lambda block: np.stack([_read_png(path, files[i]) for i in blocks[block]]),
    )


def _read_png(path, file):
    """Reads one picture; `file` is a path, or a member of the tar file `path`."""
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
