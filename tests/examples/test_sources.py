import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from examples.imagenet64 import data, sources
from examples.imagenet64.config import Config
from examples.imagenet64.convert import convert
from tests.examples import archives


def everything(split):
    return np.concatenate([split.read(i) for i in range(len(split.block_sizes))])


def assert_unusable(folder, *messages):
    """Opening fails, and the error says why, what was expected and where it is."""
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        sources.open_folder(folder)
    text = str(caught.value)
    official = "https://image-net.org/download-images"
    for message in (*messages, official, "Chrabaszcz et al. 2017", "van den Oord"):
        assert message in text


def test_npz_files_are_read_plane_by_plane(tmp_path):
    images, held_out = archives.write_npz(tmp_path)
    name, train, validation = sources.open_folder(tmp_path)
    assert name == f"{sources.RESIZED}, 2 of its 10 training files"
    assert train.block_sizes == [5, 3]
    np.testing.assert_array_equal(everything(train), images)
    np.testing.assert_array_equal(everything(validation), held_out)
    np.testing.assert_array_equal(train.pixels(), images[:5].reshape(-1, 3))


def test_npz_planes_are_red_green_blue(tmp_path):
    red_then_green = np.zeros((1, 12288), np.uint8)
    red_then_green[0, 64] = 7  # row 1, column 0 of the first plane
    red_then_green[0, 4096 + 1] = 9  # row 0, column 1 of the second plane
    np.savez(tmp_path / "train_data_batch_1.npz", data=red_then_green)
    np.savez(tmp_path / "val_data.npz", data=red_then_green)
    image = everything(sources.open_folder(tmp_path)[1])[0]
    assert image[1, 0].tolist() == [7, 0, 0] and image[0, 1].tolist() == [0, 9, 0]
    assert image.sum() == 16


@pytest.mark.parametrize("tar", [False, True])
def test_png_files(tmp_path, tar):
    images, held_out = archives.write_pngs(tmp_path, tar=tar)
    name, train, validation = sources.open_folder(tmp_path)
    assert name == sources.ORIGINAL
    assert archives.as_set(everything(train)) == archives.as_set(images)
    assert archives.as_set(everything(validation)) == archives.as_set(held_out)


def test_folders_that_hold_no_dataset(tmp_path):
    assert_unusable(tmp_path / "nowhere", "no folder", "nowhere")
    assert_unusable(tmp_path, "it holds nothing")
    (tmp_path / "notes.txt").touch()
    assert_unusable(tmp_path, "it holds notes.txt")
    (tmp_path / "Imagenet64_val_npz.zip").touch()
    assert_unusable(tmp_path, "unpack its .zip files")


def test_half_a_dataset(tmp_path):
    archives.write_npz(tmp_path / "a")
    (tmp_path / "a" / "val_data.npz").unlink()
    assert_unusable(tmp_path / "a", "val_data.npz not found")
    archives.write_npz(tmp_path / "b", train=(2,))
    (tmp_path / "b" / "train_data_batch_1.npz").unlink()
    assert_unusable(tmp_path / "b", "train_data_batch_1.npz to _10.npz not found")
    archives.write_pngs(tmp_path / "c", tar=True)
    (tmp_path / "c" / "valid_64x64.tar").unlink()
    assert_unusable(tmp_path / "c", "both needed")
    archives.write_pngs(tmp_path / "d", train=0)
    assert_unusable(tmp_path / "d", "no PNG file")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3072), np.uint8), "must be uint8 [n, 12288] but is uint8 [2, 3"),
        (np.zeros((2, 12288), np.float32), "but is float32 [2, 12288]"),
        (np.zeros((2, 64, 64, 3), np.uint8), "but is uint8 [2, 64, 64, 3]"),
        (np.zeros((0, 12288), np.uint8), "but is uint8 [0, 12288]"),
    ],
)
def test_npz_files_of_the_wrong_shape_or_dtype(tmp_path, array, message):
    archives.write_npz(tmp_path)
    np.savez(tmp_path / "train_data_batch_2.npz", data=array)
    assert_unusable(tmp_path, "train_data_batch_2.npz", message)


def test_broken_npz_files(tmp_path):
    archives.write_npz(tmp_path)
    path = tmp_path / "train_data_batch_1.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert_unusable(tmp_path, "train_data_batch_1.npz", "array 'data'")
    np.savez(path, images=np.zeros((2, 12288), np.uint8))
    assert_unusable(tmp_path, "array 'data'")
    # The header is good and the pixels are not: noticed by the checksum on reading.
    damaged = bytearray(whole)
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    _, train, _ = sources.open_folder(tmp_path)
    with pytest.raises(ValueError, match="train_data_batch_1.npz cannot be used"):
        train.read(0)


def test_broken_png_files(tmp_path):
    archives.write_pngs(tmp_path)
    path = tmp_path / "train_64x64" / "0000000.png"
    path.write_bytes(b"not a picture")
    assert_unusable(tmp_path, "0000000.png", "cannot be read as a PNG")
    Image.new("RGB", (32, 32)).save(path)
    assert_unusable(tmp_path, "64x64 RGB picture but is RGB [32, 32, 3]")
    Image.new("RGBA", (64, 64)).save(path)
    assert_unusable(tmp_path, "but is RGBA [64, 64, 4]")


@pytest.fixture
def shards(tmp_path):
    archives.write_npz(tmp_path / "npz")
    convert(str(tmp_path / "npz"), str(tmp_path / "shards"), shards=2)
    return tmp_path / "shards"


def test_missing_and_truncated_shards(shards):
    shard = shards / "train-00001-of-00002.tfrecord"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    size = 4 * (12288 + 16)
    assert_unusable(shards, shard.name, f"must have {size} bytes but has {size - 1}")
    shard.unlink()
    assert_unusable(shards, shard.name, "is missing")


def test_a_corrupt_shard_is_noticed_and_named(shards):
    shard = shards / "train-00001-of-00002.tfrecord"
    damaged = bytearray(shard.read_bytes())
    damaged[5000] ^= 1
    shard.write_bytes(damaged)
    images = data.load(Config(data_dir=str(shards)))
    with pytest.raises(tf.errors.DataLossError):
        list(images.train.take(8).as_numpy_iterator())
    with pytest.raises(ValueError, match=f"{shard.name}.*corrupt") as caught:
        images.training_split.read_all()
    assert "image-net.org/download-images" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": {}}, "a split has no images"),
        ({"train": {"train-00000-of-00002.tfrecord": "four"}}, "not written by"),
        ({"validation": None}, "not written by"),
        ({"image_shape": [32, 32, 3]}, "must be (64, 64, 3), these are (32, 32, 3)"),
    ],
)
def test_a_broken_manifest(shards, change, message):
    path = shards / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert_unusable(shards, message)
