"""The files in `tpu_configs/`: they parse, and each says only what differs."""

import dataclasses
import pathlib

import pytest
import yaml

from examples.imagenet64.config import Config, parse

FOLDER = pathlib.Path(__file__).parents[2] / "tpu_configs"
# The replicas of each slice. A v4 or v5p chip has two cores: they are counted as one
# replica, and the batch is a multiple of twice the number lest they be two.
REPLICAS = {"v5e-1": 1, "v5e-4": 4, "v5e-8": 8, "v6e-8": 8}
REPLICAS |= {"v4-8": 8, "v5p-8": 8, "v4-32": 32}
FILES = sorted(FOLDER.glob("*.yaml"))


def test_there_is_a_file_for_each_machine():
    assert {path.stem for path in FILES} == {*REPLICAS, "cpu"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_holds_only_what_differs_from_its_preset(path):
    settings = yaml.safe_load(path.read_text())
    preset = Config.from_preset(settings.pop("preset", "demo"))
    same = {key for key, value in settings.items() if getattr(preset, key) == value}
    assert same == set()
    read = parse(["--config", str(path)])
    assert read == dataclasses.replace(preset, **settings)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_begins_with_its_command_and_what_is_known_of_it(path):
    lines = path.read_text().splitlines()
    assert str(path.relative_to(FOLDER.parent)) in lines[0]
    header = [line for line in lines if line.startswith("#")]
    assert lines[: len(header)] == header
    for what in ("# Machine:", "# Verified:", "# Not verified:"):
        assert any(line.startswith(what) for line in header)


@pytest.mark.parametrize("name", REPLICAS)
def test_replicas_share_the_batch(name):
    config = parse(["--config", str(FOLDER / f"{name}.yaml")])
    assert config.strategy == "tpu"
    assert config.batch_size % REPLICAS[name] == 0
    assert config.dtype_policy == "mixed_bfloat16"
    places = config.data_dir, config.checkpoint_dir, config.tensorboard_dir
    assert all(place.startswith("gs://YOUR_BUCKET/") for place in places)


def test_every_file_writes_to_folders_of_its_own():
    configs = [parse(["--config", str(path)]) for path in FILES]
    assert len({config.output_dir for config in configs}) == len(FILES)
    assert len({config.backup_dir for config in configs}) == len(FILES)
