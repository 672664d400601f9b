"""Sources of images: contents of folders, damaged files, and held-out images."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from examples.imagenet64 import convert, data, sources
from examples.imagenet64.config import Config
from tests.examples import archives


def everything(split):
    return np.concatenate([split.read(i) for i in range(len(split.block_sizes))])


@pytest.mark.parametrize("kind", ["npz", "png", "tar"])
def test_archives_are_read_and_converted(tmp_path, kind):
    source, output = tmp_path / "source", tmp_path / "output"
    if kind == "npz":
        images, held_out = archives.write_npz(source)
        wanted = f"{sources.RESIZED}, 2 of its 10 training files"
    else:
        images, held_out = archives.write_pngs(source, tar=kind == "tar")
        wanted = sources.ORIGINAL
    name, train, validation = sources.open_folder(source)
    assert name == wanted
    np.testing.assert_array_equal(train.pixels(), train.read(0).reshape(-1, 3))
    if kind == "npz":  # in the order of the files
        assert train.block_sizes == [5, 3]
        np.testing.assert_array_equal(everything(train), images)
    assert archives.as_set(everything(train)) == archives.as_set(images)
    assert archives.as_set(everything(validation)) == archives.as_set(held_out)
    arguments = ["--source", str(source), "--output", str(output), "--shards", "2"]
    convert.main(arguments)
    count, few = len(images) // 2, len(held_out)
    assert json.loads((output / "dataset.json").read_text()) == {
        "name": name,
        "image_shape": [64, 64, 3],
        "train": {f"train-0000{i}-of-00002.tfrecord": count for i in range(2)},
        "validation": {"validation-00000-of-00001.tfrecord": few},
    }
    again, shards, kept = sources.open_folder(output)
    assert again == name
    # each shard is a sample of all files, and held-out images keep their order
    for i in range(2):
        np.testing.assert_array_equal(shards.read(i), everything(train)[i::2])
    np.testing.assert_array_equal(everything(kept), everything(validation))
    with pytest.raises(SystemExit, match="Choose another folder"):
        convert.main(arguments)


def remove(name):
    return lambda folder: (folder / name).unlink()


def save(name, array, key="data"):
    return lambda folder: np.savez(folder / name, **{key: array})


def picture(mode, side):
    path = "train_64x64/0000000.png"
    return lambda folder: Image.new(mode, (side, side)).save(folder / path)


def truncate(name, remaining):
    def cut(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(remaining * len(content))])

    return cut


def say(**change):
    def rewrite(folder):
        path = folder / "dataset.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    return rewrite


FIRST, SECOND = "train_data_batch_1.npz", "train_data_batch_2.npz"
SHARD = "train-00001-of-00002.tfrecord"
ZEROS = np.zeros((2, 12288), np.uint8)


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        ("nothing", lambda folder: folder.rmdir(), "no folder"),
        ("nothing", lambda folder: None, "it holds nothing"),
        ("nothing", lambda folder: (folder / "a.zip").touch(), "unpack its .zip files"),
        ("npz", remove("val_data.npz"), "val_data.npz not found"),
        ("one", remove(FIRST), "train_data_batch_1.npz to _10.npz not found"),
        ("npz", save(SECOND, ZEROS[:, :9]), "uint8 [n, 12288] but is uint8 [2, 9]"),
        ("npz", truncate(FIRST, 0.5), "array 'data'"),
        ("tar", remove("valid_64x64.tar"), "both needed"),
        ("tar", truncate("train_64x64.tar", 0), "cannot be read as a tar file"),
        ("no png", lambda folder: None, "no PNG file"),
        ("png", truncate("train_64x64/0000000.png", 0.5), "be read as a PNG"),
        ("png", picture("RGB", 32), "64x64 RGB picture but is RGB [32, 32, 3]"),
        ("shards", remove(SHARD), f"{SHARD} cannot be used: this shard is missing"),
        ("shards", truncate(SHARD, 0.99999), "must have 49216 bytes but has 49215"),
        ("shards", say(train={}), "a split has no images"),
        ("shards", say(validation=None), "not written by"),
        ("shards", say(image_shape=[32, 32, 3]), "must be (64, 64, 3), these are (32"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, kind, damage, message):
    folder = tmp_path / "images"
    folder.mkdir()
    if kind in ("npz", "one", "shards"):
        archives.write_npz(folder, train=(2,) if kind == "one" else (5, 3))
    elif kind != "nothing":
        count = 0 if kind == "no png" else 6
        archives.write_pngs(folder, train=count, tar=kind == "tar")
    if kind == "shards":
        convert.convert(str(folder), str(tmp_path / "shards"), shards=2)
        folder = tmp_path / "shards"
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        sources.open_folder(folder)
    official = "https://image-net.org/download-images"
    for part in (message, official, "Chrabaszcz et al. 2017", "van den Oord"):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", ["npz", "shards"])
def test_damaged_pixels_are_noticed_and_named(tmp_path, kind):
    archives.write_npz(tmp_path)
    path = tmp_path / FIRST
    if kind == "shards":
        convert.convert(str(tmp_path), str(tmp_path / "shards"), shards=2)
        path = tmp_path / "shards" / SHARD
    damaged = bytearray(path.read_bytes())
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    images = data.load(Config(data_dir=str(path.parent)))
    if kind == "shards":
        with pytest.raises(tf.errors.DataLossError):
            list(images.train.take(8).as_numpy_iterator())
    with pytest.raises(ValueError, match=f"{path.name} cannot be used.*") as caught:
        images.training_split.read_all()
    assert "image-net.org/download-images" in str(caught.value)


def test_training_crops_never_reach_the_held_out_region(monkeypatch):
    # photographs whose pixels encode their position
    row, column = np.mgrid[:427, :640]
    marked = np.stack([4 * (row // 256) + column // 256, row % 256, column % 256], -1)
    sample = dataclasses.make_dataclass("Sample", ["images"])([np.uint8(marked)] * 2)
    monkeypatch.setattr("sklearn.datasets.load_sample_images", lambda: sample)
    loaded = data.load(Config(batch_size=8))

    def place(images):
        high, row, column = np.moveaxis(images.astype(int), -1, 0)
        return 256 * (high // 4) + row, 256 * (high % 4) + column

    rows, columns = place(np.stack(list(loaded.train.take(100).as_numpy_iterator())))
    # 800 crops reach all edges of the region and never cross its right edge
    assert columns.min() < 5 and 506 < columns.max() <= 511
    assert rows.min() < 5 and rows.max() > 421
    # held-out crops are a grid of the right fifth
    corners = np.transpose(place(loaded.held_out[:, 0, 0]))
    grid = [(row, column) for row in range(0, 384, 64) for column in (512, 576)]
    np.testing.assert_array_equal(corners, 2 * grid)
    assert place(loaded.training_pixels)[1].max() == 511
    assert len(loaded.training_pixels) == 2 * 427 * 512


def test_held_out_images_are_spread_over_all_blocks():
    split = sources.Split(
        [3, 4, 3], lambda block: np.split(np.arange(10), [3, 7])[block]
    )
    np.testing.assert_array_equal(split.evenly_spaced(4), [0, 3, 6, 9])
    np.testing.assert_array_equal(split.evenly_spaced(10), np.arange(10))


def test_replicas_share_batches_that_are_full():
    loaded = data.load(Config(batch_size=10))
    assert len(loaded.held_out) == 20  # of 24
    batches = list(loaded.held_out_batches.as_numpy_iterator())
    np.testing.assert_array_equal(np.concatenate(batches), loaded.held_out)
    # each worker takes a part of each batch, not whole batches or all of them
    sharding = loaded.held_out_batches.options().experimental_distribute
    assert sharding.auto_shard_policy == tf.data.experimental.AutoShardPolicy.DATA
