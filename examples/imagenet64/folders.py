"""The folders of a run: what is refused, deleted and made before the first step."""

import dataclasses
import json
import pathlib

import tensorflow as tf


def refuse_to_delete(config):
    """Raises an error where a new run would delete checkpoints that someone placed."""
    place = config.checkpoint_dir
    if place and not config.resume and tf.io.gfile.exists(place):
        raise ValueError(
            "resume must be True if checkpoint_dir exists: to begin again, delete it "
            f"or name another. Received: checkpoint_dir={place}"
        )


def prepare(config):
    """Makes the output folder; deletes an old checkpoint in it unless it is resumed."""
    output_dir = pathlib.Path(config.output_dir)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"output_dir must be a folder, or one that can be made ({error}): name "
            f"another. Received: output_dir={config.output_dir}"
        ) from error
    settings = json.dumps(dataclasses.asdict(config), indent=2)
    (output_dir / "config.json").write_text(settings + "\n")
    if not config.resume and tf.io.gfile.exists(config.backup_dir):
        tf.io.gfile.rmtree(config.backup_dir)
