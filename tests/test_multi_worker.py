"""Two worker processes train as one does, and continue after one was killed.

The test runs this file in each worker:

    TF_CONFIG=... python -m tests.test_multi_worker FOLDER RUN [STEP_TO_DIE_AT]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import multi_worker
from keras_performer import (
    PerformerAttention,
    PerformerLM,
    RedrawFeatures,
    sequence_parallel,
)
from tests.ports import free_ports

pytestmark = pytest.mark.slow

BATCH, STEPS_PER_EPOCH, EPOCHS = 4, 2, 3
STEPS = STEPS_PER_EPOCH * EPOCHS
DIES_AT, RESUMES_AFTER = 3, 2  # in the second epoch; saved after the first
SECONDS = 300  # timeout of a worker


def main(folder, run, step_to_die_at=None):
    """Runs one worker.

    After every optimizer step it appends to `FOLDER/RUN-WORKER.txt` the step, the
    loss, the number of redraws and the matrix of random features.
    """
    strategy = multi_worker.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id
    # all workers start with the weights and random features of the chief
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
    np.savez(folder / f"{run}-{worker}.npz", loss=evaluation)


def hold_slices(folder, run):
    """Runs one worker, which holds half of each sequence."""
    strategy = multi_worker.MultiWorkerMirroredStrategy()
    worker = strategy.cluster_resolver.task_id
    keras.utils.set_random_seed(worker)
    sequence_parallel(strategy)
    with strategy.scope():
        model = language_model()
    losses = fit_tokens(model)
    np.savez(folder / f"{run}-{worker}.npz", losses, *model.get_weights())


def language_model():
    sizes = dict(num_layers=1, num_heads=2, hidden_dim=16, exact_window=5)
    model = PerformerLM(11, **sizes, conv_kernel_size=4, recompute="block")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    return model


def fit_tokens(model):
    """Returns the loss of two epochs, and the loss after them."""
    x, y = np.random.default_rng(0).integers(0, 11, (2, 4, 48))
    options = dict(batch_size=2, verbose=0)
    history = model.fit(x, y, shuffle=False, epochs=2, **options).history
    return [*history["loss"], model.evaluate(x, y, **options)]


def build_model():
    """Returns a small model, whose weights and features depend on Keras' seed."""
    layer = PerformerAttention(2, 3, num_random_features=8)
    model = keras.Sequential([keras.Input((6, 5)), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=False)
    return model


def fit(model, callbacks):
    """Trains on batch k in optimizer step k, also after it resumes."""
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
    """Returns endless global batches, which depend only on their step."""

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
    """Returns two held-out batches, as a finite dataset of known length."""
    x, y = next(iter(batches(lambda: 1000).unbatch().batch(2 * BATCH)))
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)


class FirstStep(keras.callbacks.Callback):
    """First step of the data, read after restoring and before the first step counts.

    A generator that reads `iterations` for its first batch may read 1, as the first
    step increments it without waiting for data.
    """

    step = 0  # Keras reads a batch before training, to build the model

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
    """Kills the process without cleanup, as the loss of a machine does."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if as_int(self.model.optimizer.iterations) == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def as_int(variable):
    """Converts a variable; `int` alone fails if a strategy distributes it."""
    return int(keras.ops.convert_to_numpy(variable))


def run_workers(folder, run, *more):
    """Runs both workers; `more` are further arguments of the second.

    Returns:
        The exit codes and the output of the workers. If the second one fails, the
        first one waits for it in vain and is killed.
    """
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    command = [sys.executable, "-m", "tests.test_multi_worker", str(folder), run]
    workers, logs = [], [folder / f"{run}-{index}.log" for index in range(2)]
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": cluster, "task": task})
        with open(logs[index], "w") as log:
            workers.append(
                subprocess.Popen(
                    [*command, *more] if index else command,
                    cwd=pathlib.Path(__file__).parent.parent,
                    env={**os.environ, "TF_CONFIG": config},
                    stdout=log,
                    stderr=log,
                )
            )
    try:
        if workers[1].wait(SECONDS) == 0:
            workers[0].wait(SECONDS)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    printed = "\n".join(log.read_text() for log in logs)
    return [worker.returncode for worker in workers], printed


def notes(folder, run, worker):
    """Returns the notes of each step in order: step, loss, redraws and matrix."""
    lines = (folder / f"{run}-{worker}.txt").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_steps(noted, expected):
    for (step, loss, *drawn), (wanted_step, wanted_loss, *wanted) in zip(
        noted, expected, strict=True
    ):
        assert (step, drawn) == (wanted_step, wanted)
        assert loss == pytest.approx(wanted_loss, rel=1e-5)


def test_two_workers_train_as_one_process_also_after_one_was_killed(tmp_path):
    keras.utils.set_random_seed(0)  # the chief's seed
    model = build_model()
    note = Note(tmp_path / "one-0.txt")
    fit(model, [RedrawFeatures(2), note])
    expected = notes(tmp_path, "one", 0)
    assert [step for step, *_ in expected] == [*range(1, STEPS + 1)]
    assert [redraws for *_, redraws, _ in expected] == [0, 1, 1, 2, 2, 3]
    assert len({matrix for *_, matrix in expected}) == 4
    codes, printed = run_workers(tmp_path, "run", str(DIES_AT))
    assert codes[1] == -signal.SIGKILL, printed
    assert_steps(notes(tmp_path, "run", 1), expected[:DIES_AT])

    codes, printed = run_workers(tmp_path, "run")
    assert codes == [0, 0], printed
    after = expected[RESUMES_AFTER:]
    assert_steps(notes(tmp_path, "run", 1), expected[:DIES_AT] + after)
    chief, other = (notes(tmp_path, "run", worker)[-len(after) :] for worker in (0, 1))
    assert chief == other
    assert not (tmp_path / "run-backup").exists()  # deleted after the last step

    loss = model.evaluate(held_out(), verbose=0)
    for worker in range(2):
        seen = np.load(tmp_path / f"run-{worker}.npz")
        assert seen["loss"] == pytest.approx(loss, rel=1e-5)


def test_two_workers_hold_slices_of_the_same_sequences(tmp_path):
    codes, printed = run_workers(tmp_path, "slices")
    assert codes == [0, 0], printed
    keras.utils.set_random_seed(0)  # the chief's seed
    model = language_model()
    first = model.get_weights()
    losses = fit_tokens(model)
    assert losses[1] < losses[0] - 0.1
    for worker in range(2):
        found, *weights = np.load(tmp_path / f"slices-{worker}.npz").values()
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        for one, before, ours in zip(model.get_weights(), first, weights):
            change = np.max(np.abs(one - before))
            assert np.max(np.abs(one - ours)) < max(2e-4 * change, 1e-7)


if __name__ == "__main__":
    program = hold_slices if sys.argv[2] == "slices" else main
    program(pathlib.Path(sys.argv[1]), *sys.argv[2:])
