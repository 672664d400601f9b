import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_sample_images

from examples.imagenet64 import data
from examples.imagenet64.config import Config
from tests.examples import archives


def first_batches(count, start_step=0, **settings):
    images = dataclasses.replace(data.load(Config(**settings)), start_step=start_step)
    dataset = images.train.take(count)
    return np.stack(list(dataset.as_numpy_iterator()))


def test_held_out_crops_are_a_grid_of_the_right_fifth():
    images = data.load(Config()).held_out
    china, flower = load_sample_images().images
    assert images.shape == (24, 64, 64, 3) and images.dtype == np.uint8
    np.testing.assert_array_equal(images[0], china[:64, 512:576])
    np.testing.assert_array_equal(images[11], china[320:384, 576:640])
    np.testing.assert_array_equal(images[12], flower[:64, 512:576])
    np.testing.assert_array_equal(images[23], flower[320:384, 576:640])


def use_photographs(monkeypatch, images):
    sample = dataclasses.make_dataclass("Sample", ["images"])(images)
    monkeypatch.setattr("sklearn.datasets.load_sample_images", lambda: sample)


def test_training_crops_never_reach_the_held_out_region(monkeypatch):
    # Photographs whose pixels say where they are.
    row, column = np.mgrid[:427, :640]
    marked = np.stack([4 * (row // 256) + column // 256, row % 256, column % 256], -1)
    use_photographs(monkeypatch, [marked.astype(np.uint8)] * 2)
    loaded = data.load(Config(batch_size=8))

    def rows(images):
        return 256 * (images[..., 0].astype(int) // 4) + images[..., 1]

    def columns(images):
        return 256 * (images[..., 0].astype(int) % 4) + images[..., 2]

    crops = np.concatenate(list(loaded.train.take(100).as_numpy_iterator()))
    # 800 crops reach the edges of the region and never pass its right one.
    assert columns(crops).min() < 5 and 506 < columns(crops).max() <= 511
    assert rows(crops).min() < 5 and rows(crops).max() > 421
    assert columns(loaded.held_out).min() == 512
    assert columns(loaded.training_pixels).max() == 511
    assert len(loaded.training_pixels) == 2 * 427 * 512


def test_batch_k_is_a_function_of_the_seed():
    batches = first_batches(7, seed=3, batch_size=2)
    np.testing.assert_array_equal(batches, first_batches(7, seed=3, batch_size=2))
    resumed = first_batches(4, start_step=3, seed=3, batch_size=2)
    np.testing.assert_array_equal(batches[3:], resumed)
    assert (first_batches(7, seed=4, batch_size=2) != batches).mean() > 0.5


@pytest.mark.parametrize("start_step", [2, 9])
def test_resuming_skips_blocks_and_epochs(tmp_path, start_step):
    archives.write_npz(tmp_path)  # 8 training images: 4 steps are one epoch
    settings = {"data_dir": str(tmp_path), "batch_size": 2, "seed": 1}
    batches = first_batches(12, **settings)
    resumed = first_batches(12 - start_step, start_step, **settings)
    np.testing.assert_array_equal(batches[start_step:], resumed)


def test_each_epoch_has_every_image_once_in_another_order(tmp_path):
    images, _ = archives.write_npz(tmp_path)
    stream = first_batches(16, data_dir=str(tmp_path))[:, 0]
    first, second = stream[:8], stream[8:]
    assert archives.as_set(first) == archives.as_set(images)
    assert archives.as_set(second) == archives.as_set(images)
    assert (first != second).any() and (first != images).any()


def test_blocks_are_read_one_at_a_time_and_only_when_needed():
    reads = []

    def read(block):
        reads.append(block)
        return np.full((4, 64, 64, 3), block, np.uint8)

    split = data.Split([4, 4, 4], read)
    images = list(itertools.islice(split.shuffled(seed=0, start=9), 5))
    # Three left of the first epoch's last block, then two of the second epoch.
    assert [int(image.max()) for image in images] == [reads[0]] * 3 + [reads[1]] * 2
    assert len(reads) == 2


def test_shapes_are_static_and_batches_full():
    loaded = data.load(Config(batch_size=5))
    for dataset in (loaded.train, loaded.held_out_batches):
        assert dataset.element_spec.shape == (5, 64, 64, 3)
        assert dataset.element_spec.dtype == "uint8"
    # By workers: each takes its part of a batch, not whole batches or all of them.
    sharding = loaded.held_out_batches.options().experimental_distribute
    assert sharding.auto_shard_policy == tf.data.experimental.AutoShardPolicy.DATA
    assert len(loaded.held_out) == 20
    batches = list(loaded.held_out_batches.as_numpy_iterator())
    np.testing.assert_array_equal(np.concatenate(batches), loaded.held_out)


def test_held_out_images_are_spread_over_all_blocks():
    split = data.Split(
        [3, 4, 3], lambda block: np.arange([0, 3, 7][block], [3, 7, 10][block])
    )
    np.testing.assert_array_equal(split.evenly_spaced(4), [0, 3, 6, 9])
    np.testing.assert_array_equal(split.evenly_spaced(10), np.arange(10))


def test_two_replicas_share_each_batch():
    loaded = data.load(Config(batch_size=4))
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for dataset in (loaded.train, loaded.held_out_batches):
        expected = next(dataset.as_numpy_iterator())
        shared = next(iter(strategy.experimental_distribute_dataset(dataset)))
        parts = strategy.experimental_local_results(shared)
        assert [part.shape[0] for part in parts] == [2, 2]
        np.testing.assert_array_equal(np.concatenate(parts), expected)
