"""One of the two workers that `test_multi_worker.py` starts, and what they train.

    TF_CONFIG=... python -m tests.multi_worker FOLDER RUN [STEP_TO_DIE_AT]

Writes every optimizer step to `FOLDER/RUN-WORKER.txt` at once, as a line with the step,
the loss, the number of redraws and the matrix of random features.
"""

import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

from examples.imagenet64 import multi_worker
from keras_performer import PerformerAttention, RedrawFeatures

BATCH, STEPS_PER_EPOCH, EPOCHS = 4, 2, 3


def main(folder, run, step_to_die_at=None):
    strategy = multi_worker.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id
    # the chief's draws count: every worker begins with its weights and its features
    keras.utils.set_random_seed(worker)
    with strategy.scope():
        model = build_model()
    callbacks = [
        RedrawFeatures(2),
        multi_worker.backup_and_restore(strategy, folder / f"{run}-backup"),
        Note(folder / f"{run}-{worker}.txt"),
    ]
    if step_to_die_at is not None:
        callbacks.append(Die(int(step_to_die_at)))
    fit(model, callbacks)

    evaluation = model.evaluate(held_out(), verbose=0)
    prediction = model.predict(held_out(), verbose=0)
    np.savez(folder / f"{run}-{worker}.npz", loss=evaluation, prediction=prediction)
    if multi_worker.is_chief(strategy):
        model.save(folder / f"{run}.keras")
        model.export(folder / f"{run}-export", verbose=False)


def build_model():
    """A small model, its weights and features drawn from Keras' global seed."""
    layer = PerformerAttention(2, 3, num_random_features=8)
    model = keras.Sequential([keras.Input((6, 5)), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=False)
    return model


def fit(model, callbacks):
    """Trains on batch k in optimizer step k, also where training is resumed."""
    first = FirstStep()
    model.fit(
        batches(lambda: first.step),
        steps_per_epoch=STEPS_PER_EPOCH,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[*callbacks, first],
    )


def batches(first_step):
    """Endless global batches, each a function of its step alone."""

    def examples():
        step = first_step()
        while True:
            random = np.random.default_rng((3, step))
            for _ in range(BATCH):
                x = random.standard_normal((6, 5)).astype("float32")
                yield x, x[:, :1] ** 2 + step / 10
            step += 1

    signature = tf.TensorSpec((6, 5)), tf.TensorSpec((6, 1))
    dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
    dataset = dataset.batch(BATCH, drop_remainder=True)
    options = tf.data.Options()
    sharding = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = sharding
    return dataset.with_options(options)


def held_out():
    """Two batches that are not trained on, as a finite dataset of known length."""
    x, y = next(iter(batches(lambda: 1000).unbatch().batch(2 * BATCH)))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)


class FirstStep(keras.callbacks.Callback):
    """Start of the data: after restoring, and before a step counts itself.

    A generator that reads `iterations` when it is first asked for data may read 1: the
    first step counts itself without waiting for its data.
    """

    step = 0  # to build the model, Keras looks at a batch before training

    def on_epoch_begin(self, epoch, logs=None):
        self.step = as_int(self.model.optimizer.iterations)


class Note(keras.callbacks.Callback):
    """Appends a line to a file after every step."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_batch_end(self, batch, logs=None):
        layer = self.model.layers[0]
        step, count = map(as_int, (self.model.optimizer.iterations, layer.redraw_count))
        matrix = keras.ops.convert_to_numpy(layer.projection_matrix).tobytes().hex()
        with open(self.path, "a") as file:
            file.write(json.dumps([step, float(logs["loss"]), count, matrix]) + "\n")


class Die(keras.callbacks.Callback):
    """Ends the process as a lost machine does, without a chance to clean up."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if as_int(self.model.optimizer.iterations) == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def as_int(variable):
    """`int(variable)` fails for a variable that a strategy distributes."""
    return int(keras.ops.convert_to_numpy(variable))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
