"""Trains a causal Performer on 64x64 images, generates images and reports results.

    python -m examples.imagenet64.train                     # some minutes on a CPU
    python -m examples.imagenet64.train --preset paper --data_dir ~/imagenet64
    python -m examples.imagenet64.train --help

The program writes `pictures.png`, `curve.png`, `table.txt`, `model.keras` and its
settings, `config.json`, into `output_dir`.
"""

import dataclasses
import functools
import math
import pathlib

import keras
import numpy as np
import tensorflow as tf

import keras_performer
from examples.imagenet64 import (
    callbacks,
    data,
    folders,
    likelihoods,
    multi_worker,
    optimizer,
    report,
    strategies,
)
from examples.imagenet64 import model as image_model
from examples.imagenet64.config import parse


def main(argv=None):
    """Runs the whole example; returns a dict of labels to bits per dimension."""
    config = parse(argv)
    folders.refuse_to_delete(config)
    folders.refuse_another_model(config)
    strategy = strategies.make(config)
    is_chief = multi_worker.is_chief(strategy)
    output_dir = pathlib.Path(config.output_dir)
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.dtype_policy)
    with strategy.scope():
        model = image_model.make(config)
        compile_model(model, config)
    images = data.load(config)

    # Wrong settings have raised errors by now, before the old checkpoint is deleted.
    if is_chief:
        folders.prepare(config)
    with strategy.scope():
        # All machines make these variables together, so that none continues before the
        # chief has deleted the checkpoint.
        model.optimizer.build(model.trainable_variables)
        backup = multi_worker.backup_and_restore(strategy, config.backup_dir)
        backup.delete_checkpoint = False  # work follows after training
        backup.set_model(model)
        backup.on_train_begin()  # before fit, as the data need the step
    images = dataclasses.replace(images, start_step=callbacks.steps_done(model))
    print(f"{images.name}\n{model.count_params():,} parameters, {config.preset} preset")
    chosen = [backup, *callbacks.make(config, is_chief)]
    curves = train(model, images, config, strategy, chosen, verbose=is_chief)
    if is_chief:
        model.save(output_dir / "model.keras")
    results = {"this model": evaluate(model, images)}
    if config.control and config.attention != "none":
        print("\ntraining the same model without attention")
        results["without attention"] = control(images, config, strategy, is_chief)
    if not is_chief:
        return results

    baselines = report.baselines(images.training_pixels, images.held_out)
    table = report.table({**results, **baselines}, images.name)
    (output_dir / "table.txt").write_text(table + "\n")
    if curves[0]:  # empty if the resumed run had done all steps
        report.save_curve(output_dir / "curve.png", *curves, baselines)
    if config.num_samples or config.num_completions:
        with strategies.one_device(config):
            one = on_one_device(model, config)
            pictures(one, images, config, output_dir / "pictures.png")
    print(f"\n{table}\n\nwrote {output_dir}")
    return {**results, **baselines}


def compile_model(model, config):
    """Compiles the model as `config` says; call it in the scope of the strategy."""
    bits = functools.partial(
        likelihoods.BitsPerDimension, config.likelihood, config.num_mixtures
    )
    model.compile(
        optimizer.make(config),
        loss=bits(),
        # Keras divides a reduced loss by the number of replicas.
        metrics=[
            keras.metrics.MeanMetricWrapper(bits(reduction="none"), "bits_per_dim")
        ],
        steps_per_execution=config.steps_per_execution,
    )


def train(model, images, config, strategy, chosen, verbose=True):
    """Trains the model; returns the training and held-out curves, (step, bits) pairs.

    Curves use steps: an epoch may have ended early or had another number of steps.
    """
    curve = callbacks.Curve()
    left = max(config.num_steps - callbacks.steps_done(model), 0)
    try:
        model.fit(
            strategy.distribute_datasets_from_function(
                lambda context: training_sequences(images, config, context)
            ),
            validation_data=images.held_out_batches.map(image_model.shift),
            steps_per_epoch=config.steps_per_epoch,
            epochs=callbacks.epochs_done(model)
            + math.ceil(left / config.steps_per_epoch),
            callbacks=[*chosen, curve],
            verbose="auto" if verbose else 0,
            shuffle=False,  # the data is shuffled already
        )
    except tf.errors.DataLossError:
        images.training_split.read_all()  # fails with the name of the broken file
        raise
    return curve.training, curve.held_out


def training_sequences(images, config, context):
    """Returns a dataset of inputs and targets, from some rows of each image.

    The seed and the step determine the rows, as they determine the images. Inputs get
    `config.input_noise`, because a generating model reads its own colours, which are
    slightly wrong.
    """
    rows = config.training_rows
    # each replica of the host takes one part of a batch, in turn
    parts = context.num_replicas_in_sync // context.num_input_pipelines

    def some_rows(index, batch):
        step = images.start_step + tf.cast(index, tf.int32) // parts
        seed = tf.stack([config.seed, step])
        last = image_model.SIDE - rows
        first = tf.random.stateless_uniform((), seed, 0, last + 1, tf.int32)
        batch = tf.ensure_shape(
            batch[:, first : first + rows], (None, rows, *batch.shape[2:])
        )
        inputs, targets = image_model.shift(batch)
        if config.input_noise:
            inputs = with_noise(inputs, config.input_noise, tf.random.fold_in(seed, 1))
        return inputs, targets

    return images.training_batches(context).enumerate().map(some_rows)


def with_noise(inputs, largest, seed):
    """Adds normal noise to colours, of a standard deviation from 0 to `largest`.

    Each image has its own deviation, so that a model learns how far to trust inputs.
    """
    seed, other = tf.unstack(tf.random.split(seed))
    deviation = tf.random.stateless_uniform((tf.shape(inputs)[0], 1), seed, 0, largest)
    noise = deviation * tf.random.stateless_normal(tf.shape(inputs), other)
    noisy = inputs + tf.cast(tf.round(noise), inputs.dtype)
    return tf.clip_by_value(noisy, 0, likelihoods.NUM_VALUES - 1)


def control(images, config, strategy, is_chief):
    """Trains the model without attention; returns its bits per dimension."""
    config = dataclasses.replace(config, attention="none", tensorboard_dir=None)
    keras.utils.set_random_seed(config.seed)
    with strategy.scope():
        model = image_model.make(config)
        compile_model(model, config)
    images = dataclasses.replace(images, start_step=0)
    chosen = callbacks.make(config, is_chief)
    train(model, images, config, strategy, chosen, verbose=is_chief)
    return evaluate(model, images)


def evaluate(model, images):
    """Returns bits per dimension of the held-out images."""
    batches = images.held_out_batches.map(image_model.shift)
    return model.evaluate(batches, verbose=0, return_dict=True)["bits_per_dim"]


def on_one_device(model, config):
    """Returns the model, or a copy outside the strategy if `config` has one."""
    if config.strategy == "none":
        return model
    copy = image_model.make(config)
    copy.set_weights(model.get_weights())
    return copy


def pictures(model, images, config, path):
    """Generates completions of held-out images and new images, and saves all."""
    held_out = report.most_detailed(images.held_out, config.num_completions)
    upper = held_out[:, : image_model.SIDE // 2].reshape(len(held_out), -1)
    prompts = {
        "completing": np.pad(upper.astype("int32"), [(0, 0), (1, 0)]),
        "drawing": np.zeros((config.num_samples, 1), "int32"),
    }
    drawn = []
    for verb, prompt in prompts.items():
        print(f"{verb} {len(prompt)} images")
        sequences = np.zeros((0, image_model.LENGTH + 1))
        if len(prompt):
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


if __name__ == "__main__":
    main()
