"""Files that a run checks, deletes and writes before its first step; its report."""

import dataclasses
import pathlib

import pytest

from examples.imagenet64 import data, folders, report
from examples.imagenet64.config import Config


def run_with_a_checkpoint(**settings):
    """Leaves the files of an interrupted run with these settings."""
    config = Config(**{"output_dir": "out", **settings})
    folders.prepare(config)
    pathlib.Path(config.backup_dir, "latest.weights.h5").touch()


def test_a_new_run_deletes_the_checkpoint_in_its_output_folder():
    run_with_a_checkpoint()
    old, kept = pathlib.Path("out/checkpoint/latest.weights.h5"), pathlib.Path("out/a")
    kept.touch()
    folders.prepare(Config(output_dir="out", resume=True))
    assert old.exists()
    folders.refuse_to_delete(Config(output_dir="out"))
    folders.prepare(Config(output_dir="out"))
    assert kept.exists() and not old.exists()


def test_what_is_of_no_run_is_not_deleted(tmp_path):
    run_with_a_checkpoint()
    (tmp_path / "out/checkpoint/best.weights.h5").touch()
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"num_steps": 7, "dropout": 0.1, "dtype_policy": "mixed_bfloat16"}, None),
        ({"hidden_dim": 32, "checkpoint_dir": "elsewhere"}, None),
        ({"hidden_dim": 32}, "resume, hidden_dim=16: .* Received: hidden_dim=32$"),
        (
            {"hidden_dim": 32, "likelihood": "categorical"},
            "=16, likelihood=mixture: .*",
        ),
        # the settings stay with the checkpoint
        ({"output_dir": "new", "exact_window": 8}, "Received: exact_window=8"),
    ],
)
def test_a_checkpoint_of_another_model_is_not_resumed(tmp_path, changes, message):
    known = {"hidden_dim": 16, "exact_window": 4, "checkpoint_dir": "kept"}
    run_with_a_checkpoint(**known)
    (tmp_path / "elsewhere").mkdir()
    settings = {"output_dir": "out", "resume": True, **known, **changes}
    if message is None:
        return folders.refuse_another_model(Config(**settings))
    with pytest.raises(ValueError, match=f"that of the checkpoint to .*{message}"):
        folders.refuse_another_model(Config(**settings))


# -- The report


def test_baselines_on_the_photographs():
    loaded = data.load(Config())
    baselines = report.baselines(loaded.training_pixels, loaded.held_out)
    assert list(baselines) == ["uniform", "histogram", "png"]
    assert baselines["uniform"] == 8.0
    # recorded values; versions of zlib differ in the second decimal
    assert baselines["histogram"] == pytest.approx(7.449, abs=1e-3)
    assert baselines["png"] == pytest.approx(3.44, abs=0.05)
