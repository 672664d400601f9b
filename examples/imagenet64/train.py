"""Trains a causal Performer on 64x64 images, generates, and shows what it did.

    python -m examples.imagenet64.train                     # some minutes on a CPU
    python -m examples.imagenet64.train --preset paper --data_dir ~/imagenet64
    python -m examples.imagenet64.train --help

What it writes into `output_dir`: `pictures.png`, `curve.png`, `table.txt`,
`model.keras`, and the settings of the run, `config.json`.
"""

import dataclasses
import json
import math
import pathlib
import shutil
import time

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from examples.imagenet64 import data, report
from examples.imagenet64 import model as image_model
from examples.imagenet64.config import parse

# Training images that the linear prediction is fitted to, before the first step.
IMAGES_TO_FIT = 32


def main(argv=None):
    """Runs the whole example and returns its results, label to bits per dimension."""
    config = parse(argv)
    output_dir = pathlib.Path(config.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    settings = json.dumps(dataclasses.asdict(config), indent=2)
    (output_dir / "config.json").write_text(settings + "\n")
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.dtype_policy)

    model = image_model.make(config)
    # read when training starts: a resumed run goes on with the batches it has not seen
    images = data.load(config, start_step=lambda: int(model.optimizer.iterations))
    print(f"{images.name}\n{model.count_params():,} parameters, {config.preset} preset")
    curves = train(model, images, config)

    results = {"this model": evaluate(model, images)}
    baselines = report.baselines(images.training_pixels, images.held_out)
    table = report.table({**results, **baselines}, images.name)
    (output_dir / "table.txt").write_text(table + "\n")
    report.save_curve(output_dir / "curve.png", *curves, baselines)
    model.save(output_dir / "model.keras")
    written = ["curve.png", "table.txt", "model.keras"]
    if config.num_samples or config.num_completions:
        pictures(model, images, config, output_dir / "pictures.png")
        written.insert(0, "pictures.png")
    print(f"\n{table}\n")
    for name in written:
        print(f"wrote {output_dir / name}")
    return {**results, **baselines}


def train(model, images, config):
    """Fits the model; returns the training and held-out curves, (step, bits) pairs."""
    if isinstance(model, image_model.PixelPerformer):
        batches = math.ceil(IMAGES_TO_FIT / config.batch_size)
        examples = data.load(config).train.take(batches)
        model.fit_prediction(tf.concat(list(examples), 0))
    loss = image_model.BitsPerDimension(config.likelihood, config.num_mixtures)
    model.compile(
        keras.optimizers.AdamW(
            learning_rate(config),
            weight_decay=config.weight_decay,
            beta_1=config.beta_1,
            beta_2=config.beta_2,
            epsilon=config.epsilon,
            global_clipnorm=config.global_clipnorm,
        ),
        loss=loss,
        metrics=[keras.metrics.MeanMetricWrapper(loss, name="bits_per_dim")],
        steps_per_execution=config.steps_per_execution,
    )
    curve = Curve()
    model.fit(
        images.train.map(image_model.shift),
        validation_data=images.held_out_batches.map(image_model.shift),
        steps_per_epoch=config.steps_per_epoch,
        epochs=math.ceil(config.num_steps / config.steps_per_epoch),
        callbacks=[*callbacks(config), curve],
        shuffle=False,  # the data is shuffled already
    )
    return curve.training, curve.held_out


def callbacks(config):
    """Redraws, checkpoints and logs, as the settings say."""
    checkpoint_dir = config.checkpoint_dir or f"{config.output_dir}/checkpoint"
    if not config.resume:
        shutil.rmtree(checkpoint_dir, ignore_errors=True)
    chosen = [keras.callbacks.TerminateOnNaN()]
    if config.every_n_steps:
        chosen.append(keras_performer.RedrawFeatures(config.every_n_steps))
    chosen.append(keras.callbacks.BackupAndRestore(checkpoint_dir))
    if config.tensorboard_dir:
        chosen.append(keras.callbacks.TensorBoard(config.tensorboard_dir))
    if config.max_minutes:
        chosen.append(StopAfter(config.max_minutes))
    return chosen


def learning_rate(config):
    """Linear warm-up, then constant or a cosine."""
    if config.learning_rate_decay == "none" and not config.warmup_steps:
        return config.learning_rate
    return keras.optimizers.schedules.CosineDecay(
        0.0 if config.warmup_steps else config.learning_rate,
        decay_steps=max(config.num_steps - config.warmup_steps, 1),
        alpha=0.01 if config.learning_rate_decay == "cosine" else 1.0,
        warmup_target=config.learning_rate if config.warmup_steps else None,
        warmup_steps=config.warmup_steps,
    )


def evaluate(model, images):
    """Bits per dimension of the held-out images."""
    batches = images.held_out_batches.map(image_model.shift)
    return model.evaluate(batches, verbose=0, return_dict=True)["bits_per_dim"]


def pictures(model, images, config, path):
    """Draws completions of held-out images and free samples, and saves all."""
    held_out = report.most_detailed(images.held_out, config.num_completions)
    inputs, targets = image_model.shift(held_out)
    prompts = {
        "completing": tf.concat([inputs[:, :1], targets], 1)[
            :, : 1 + image_model.LENGTH // 2
        ],
        "drawing": tf.zeros((config.num_samples, 1), tf.int32),
    }
    drawn = []
    for verb, prompt in prompts.items():
        print(f"{verb} {prompt.shape[0]} images")
        if prompt.shape[0] == 0:
            drawn.append(np.zeros((0, 64, 64, 3), np.uint8))
            continue
        sequences = keras_performer.generate(
            model,
            prompt,
            image_model.LENGTH + 1,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            seed=config.seed,
        )
        drawn.append(sequences[:, 1:].reshape(-1, 64, 64, 3).astype(np.uint8))
    report.save_pictures(path, held_out, *drawn)


class StopAfter(keras.callbacks.Callback):
    """Ends training after so many minutes, at the next batch."""

    def __init__(self, minutes):
        super().__init__()
        self.minutes = minutes

    def on_train_begin(self, logs=None):
        self.end = time.monotonic() + 60 * self.minutes

    def on_train_batch_end(self, batch, logs=None):
        if time.monotonic() > self.end:
            print(f"\nStopped after max_minutes={self.minutes}.")
            self.model.stop_training = True


class Curve(keras.callbacks.Callback):
    """Collects bits per dimension against optimizer steps."""

    def __init__(self):
        super().__init__()
        self.training, self.held_out = [], []

    def on_epoch_end(self, epoch, logs=None):
        step = int(self.model.optimizer.iterations)
        self.training.append((step, logs["bits_per_dim"]))
        self.held_out.append((step, logs["val_bits_per_dim"]))


if __name__ == "__main__":
    main()
