"""What a run finds, deletes and refuses before its first step."""

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
