"""Checks, deletes and makes the folders of a run before the first step."""

import dataclasses
import json
import os
import pathlib

import tensorflow as tf

SETTINGS = "config.json"
# Files in the folder of a checkpoint: the settings, and Keras' files with backups.
_OF_KERAS = "latest.weights.h5", "training_metadata.json"
OF_A_CHECKPOINT = {SETTINGS, *_OF_KERAS, *(f"{name}.bkp" for name in _OF_KERAS)}
# Settings that must equal the checkpoint's settings to resume; others may change.
OF_THE_MODEL = (
    "num_layers num_heads hidden_dim intermediate_dim attention feature_map "
    "num_random_features exact_window position_embedding likelihood num_mixtures "
    "num_last start_of_row"
).split()


def refuse_to_delete(config):
    """Raises an error if a new run would delete a `checkpoint_dir` or foreign files."""
    if config.resume or not tf.io.gfile.exists(config.backup_dir):
        return
    if config.checkpoint_dir:
        if tf.io.gfile.listdir(config.backup_dir) == [SETTINGS]:
            return  # a run ended before its first checkpoint
        raise ValueError(
            "resume must be True if checkpoint_dir exists: to begin again, delete it "
            f"or name another. Received: checkpoint_dir={config.checkpoint_dir}"
        )
    foreign = sorted({*tf.io.gfile.listdir(config.backup_dir)} - OF_A_CHECKPOINT)
    if foreign:
        raise ValueError(
            "output_dir must have a folder checkpoint that a new run may delete: name "
            f"another. Received: output_dir={config.output_dir}, where this folder has "
            f"files of no run: {', '.join(foreign)}"
        )


def refuse_another_model(config):
    """Raises an error if a run would resume from the checkpoint of another model."""
    path, weights = (
        os.path.join(config.backup_dir, name) for name in (SETTINGS, _OF_KERAS[0])
    )
    if not (config.resume and all(map(tf.io.gfile.exists, (path, weights)))):
        return
    with tf.io.gfile.GFile(path) as file:
        saved = dataclasses.asdict(config) | json.loads(file.read())
    differ = [name for name in OF_THE_MODEL if saved[name] != getattr(config, name)]
    if differ:
        was = ", ".join(f"{name}={saved[name]}" for name in differ)
        received = ", ".join(f"{name}={getattr(config, name)}" for name in differ)
        raise ValueError(
            f"The model must be that of the checkpoint to resume, {was}: give these, "
            f"or another output_dir to begin a new run. Received: {received}"
        )


def prepare(config):
    """Makes the folders; deletes an old checkpoint unless the run resumes from it.

    Both folders get the settings, so that a checkpoint keeps the settings of its model.
    """
    output_dir = pathlib.Path(config.output_dir)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"output_dir must be a folder, or one that can be made ({error}): name "
            f"another. Received: output_dir={config.output_dir}"
        ) from error
    if not config.resume and tf.io.gfile.exists(config.backup_dir):
        tf.io.gfile.rmtree(config.backup_dir)
    tf.io.gfile.makedirs(config.backup_dir)
    settings = json.dumps(dataclasses.asdict(config), indent=2) + "\n"
    for folder in output_dir, config.backup_dir:
        with tf.io.gfile.GFile(os.path.join(folder, SETTINGS), "w") as file:
            file.write(settings)
