import json

import numpy as np
import pytest

from examples.imagenet64 import convert, data, sources
from examples.imagenet64.config import Config
from tests.examples import archives


@pytest.mark.parametrize("kind", ["npz", "png", "tar"])
def test_round_trip(tmp_path, kind):
    source, output = str(tmp_path / "source"), str(tmp_path / "output")
    if kind == "npz":
        images, held_out = archives.write_npz(tmp_path / "source")
    else:
        images, held_out = archives.write_pngs(tmp_path / "source", tar=kind == "tar")
    convert.main(["--source", source, "--output", output, "--shards", "3"])
    before, after = sources.open_folder(source), sources.open_folder(output)
    assert after[0] == before[0]
    assert len(after[1].block_sizes) == 3
    assert max(after[1].block_sizes) - min(after[1].block_sizes) <= 1
    converted = [after[1].read(i) for i in range(3)]
    assert archives.as_set(np.concatenate(converted)) == archives.as_set(images)
    # The held-out images keep their order, so that a subset is the same subset.
    settings = {"held_out_images": 2}
    loaded = [data.load(Config(data_dir=d, **settings)) for d in (source, output)]
    np.testing.assert_array_equal(loaded[0].held_out, loaded[1].held_out)
    assert set(archives.as_set(loaded[1].held_out)) <= set(archives.as_set(held_out))
    assert loaded[0].name == loaded[1].name


def test_each_shard_is_a_sample_of_all_files(tmp_path):
    images, _ = archives.write_npz(tmp_path / "npz")
    convert.convert(str(tmp_path / "npz"), str(tmp_path / "shards"), shards=2)
    _, train, _ = sources.open_folder(tmp_path / "shards")
    np.testing.assert_array_equal(train.read(0), images[0::2])
    np.testing.assert_array_equal(train.read(1), images[1::2])


def test_the_manifest_names_version_and_counts(tmp_path):
    archives.write_pngs(tmp_path / "png")
    convert.convert(str(tmp_path / "png"), str(tmp_path / "shards"), shards=2)
    assert json.loads((tmp_path / "shards" / "dataset.json").read_text()) == {
        "name": "ImageNet64, original (van den Oord et al. 2016)",
        "image_shape": [64, 64, 3],
        "train": {f"train-0000{i}-of-00002.tfrecord": 3 for i in range(2)},
        "validation": {"validation-00000-of-00001.tfrecord": 3},
    }


def test_an_existing_dataset_is_not_overwritten(tmp_path):
    archives.write_pngs(tmp_path / "png")
    arguments = str(tmp_path / "png"), str(tmp_path / "shards"), 1
    convert.convert(*arguments)
    with pytest.raises(ValueError, match="Choose another folder"):
        convert.convert(*arguments)
