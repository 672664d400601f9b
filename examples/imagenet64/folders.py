"""The folders of a run: what is refused, deleted and made before the first step."""

import dataclasses
import json
import pathlib

import tensorflow as tf

SETTINGS = "config.json"
# What a checkpoint fits to; other settings may change when a run goes on.
OF_THE_MODEL = (
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "attention",
    "feature_map",
    "num_random_features",
    "exact_window",
    "position_embedding",
    "likelihood",
    "num_mixtures",
)


def refuse_to_delete(config):
    """Raises an error where a new run would delete checkpoints that someone placed."""
    place = config.checkpoint_dir
    if place and not config.resume and tf.io.gfile.exists(place):
        raise ValueError(
            "resume must be True if checkpoint_dir exists: to begin again, delete it "
            f"or name another. Received: checkpoint_dir={place}"
        )


def refuse_another_model(config):
    """Raises an error where a run would go on from the checkpoint of another model."""
    settings = pathlib.Path(config.output_dir) / SETTINGS
    resumes = config.resume and tf.io.gfile.exists(config.backup_dir)
    if not (resumes and settings.is_file()):
        return
    saved = dataclasses.asdict(config) | json.loads(settings.read_text())
    if saved["checkpoint_dir"] != config.checkpoint_dir:
        return  # the settings are those of another checkpoint
    differ = [name for name in OF_THE_MODEL if saved[name] != getattr(config, name)]
    if differ:
        was = ", ".join(f"{name}={saved[name]}" for name in differ)
        received = ", ".join(f"{name}={getattr(config, name)}" for name in differ)
        raise ValueError(
            f"The model must be that of the checkpoint to resume, {was}: give these, "
            f"or another output_dir to begin a new run. Received: {received}"
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
    (output_dir / SETTINGS).write_text(settings + "\n")
    if not config.resume and tf.io.gfile.exists(config.backup_dir):
        tf.io.gfile.rmtree(config.backup_dir)
