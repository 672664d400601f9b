"""A run finds, deletes and refuses files before its first step."""

import dataclasses
import pathlib

import pytest

from examples.imagenet64 import folders
from examples.imagenet64.config import Config


def test_a_new_run_deletes_the_checkpoint_in_its_output_folder(tmp_path):
    config = Config(output_dir="out")
    kept, old = tmp_path / "out/kept", tmp_path / "out/checkpoint/latest.weights.h5"
    old.parent.mkdir(parents=True)
    for file in (kept, old):
        file.touch()
    folders.prepare(Config(output_dir="out", resume=True))
    assert old.exists()
    folders.refuse_to_delete(config)
    folders.prepare(config)
    assert kept.exists() and not old.exists()


@pytest.mark.parametrize("name", ["file", "file/inside"])
def test_an_output_folder_that_is_a_file(tmp_path, name):
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match=f"must be a folder.*output_dir={name}$"):
        folders.prepare(Config(output_dir=name))
    assert (tmp_path / "file").read_text() == "text"


def run_with_a_checkpoint(**settings):
    """Leaves what a run with these settings leaves before it is interrupted."""
    config = Config(**{"output_dir": "out", **settings})
    folders.prepare(config)
    pathlib.Path(config.backup_dir, "latest.weights.h5").touch()


def test_what_is_of_no_run_is_not_deleted(tmp_path):
    run_with_a_checkpoint()
    folders.refuse_to_delete(Config(output_dir="out"))
    thesis = tmp_path / "out/checkpoint/best.weights.h5"
    thesis.touch()
    (tmp_path / "out/checkpoint/more").mkdir()
    with pytest.raises(ValueError, match="files of no run: best.weights.h5, more$"):
        folders.refuse_to_delete(Config(output_dir="out"))
    folders.refuse_to_delete(Config(output_dir="out", resume=True))


def test_a_run_without_a_checkpoint_may_begin_again():
    folders.prepare(Config(output_dir="out", checkpoint_dir="kept", hidden_dim=16))
    again = Config(output_dir="out", checkpoint_dir="kept", hidden_dim=32)
    folders.refuse_to_delete(again)
    folders.refuse_another_model(dataclasses.replace(again, resume=True))
    pathlib.Path("kept/latest.weights.h5").touch()
    with pytest.raises(ValueError, match="resume must be True if checkpoint_dir"):
        folders.refuse_to_delete(again)


def test_a_checkpoint_of_another_model_is_not_resumed():
    run_with_a_checkpoint(hidden_dim=16, num_layers=3)
    resumed = Config(output_dir="out", resume=True, hidden_dim=32, num_layers=3)
    wanted = "checkpoint to resume, hidden_dim=16: .* Received: hidden_dim=32$"
    with pytest.raises(ValueError, match=wanted):
        folders.refuse_another_model(resumed)
    two = dataclasses.replace(resumed, likelihood="categorical")
    wanted = "hidden_dim=16, likelihood=mixture: .* hidden_dim=32, likelihood=categor"
    with pytest.raises(ValueError, match=wanted):
        folders.refuse_another_model(two)


@pytest.mark.parametrize(
    "changes", [{"start_of_row": "above"}, {"num_last": 6}, {"output_dir": "new"}]
)
def test_settings_stay_with_the_checkpoint(changes):
    run_with_a_checkpoint(checkpoint_dir="kept", exact_window=4)
    settings = dict(output_dir="out", checkpoint_dir="kept", resume=True)
    window = {"exact_window": 8 if "output_dir" in changes else 4}
    with pytest.raises(ValueError, match="must be that of the checkpoint to resume"):
        folders.refuse_another_model(Config(**{**settings, **window, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_steps": 7, "dropout": 0.1, "seed": 3, "dtype_policy": "mixed_bfloat16"},
        {"hidden_dim": 32, "resume": False},  # deletes it and begins again
        {"hidden_dim": 32, "checkpoint_dir": "elsewhere"},
        {"hidden_dim": 32, "output_dir": "new"},
    ],
)
def test_what_does_not_resume_another_model(tmp_path, changes):
    run_with_a_checkpoint(hidden_dim=16)
    (tmp_path / "elsewhere").mkdir()
    settings = {"output_dir": "out", "resume": True, "hidden_dim": 16, **changes}
    folders.refuse_another_model(Config(**settings))
