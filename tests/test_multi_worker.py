"""Two worker processes train as one does, and go on after one of them was killed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

import keras_performer
from examples.imagenet64.multi_worker import backup_and_restore, is_chief
from tests import multi_worker
from tests.ports import free_ports

pytestmark = pytest.mark.slow

SECONDS = 300  # until a worker that hangs is killed
STEPS = multi_worker.STEPS_PER_EPOCH * multi_worker.EPOCHS
DIES_AT, RESUMES_AFTER = 8, 6  # in the third epoch; the last save ends the second


def run_workers(folder, run, *more):
    """Runs both workers; `more` are further arguments of the second.

    Returns:
        The exit codes, and what the workers printed. Where the second fails, the first
        waits for it in vain and is killed.
    """
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    command = [sys.executable, "-m", "tests.multi_worker", str(folder), run]
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
    """Of each step done, in the order of doing: step, loss, redraws and matrix."""
    lines = (folder / f"{run}-{worker}.txt").read_text().splitlines()
    parts = [line.split() for line in lines]
    return [(int(step), float(loss), int(n), matrix) for step, loss, n, matrix in parts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds a run of two workers that nothing disturbed."""
    folder = tmp_path_factory.mktemp("workers")
    codes, printed = run_workers(folder, "undisturbed")
    assert codes == [0, 0], printed
    return folder


@pytest.fixture
def one_process(tmp_path):
    """The same training in one process: the model and what it noted."""
    keras.utils.set_random_seed(0)  # as the chief
    model = multi_worker.build_model()
    note = multi_worker.Note(tmp_path / "one-0.txt")
    multi_worker.fit(model, [keras_performer.RedrawFeatures(2), note])
    return model, notes(tmp_path, "one", 0)


def test_two_workers_train_as_one_process(folder, one_process):
    model, expected = one_process
    chief, other = (notes(folder, "undisturbed", worker) for worker in range(2))
    assert chief == other
    steps, losses, redraws, matrices = zip(*chief)
    assert steps == tuple(range(1, STEPS + 1))
    assert redraws == tuple(step // 2 for step in steps)
    assert matrices == tuple(matrix for *_, matrix in expected)
    assert len(set(matrices)) == STEPS // 2 + 1
    assert losses == pytest.approx([loss for _, loss, *_ in expected], rel=1e-5)

    loss = model.evaluate(multi_worker.held_out(), verbose=0)
    prediction = model.predict(multi_worker.held_out(), verbose=0)
    assert prediction.std() > 0.1
    for worker in range(2):
        seen = np.load(folder / f"undisturbed-{worker}.npz")
        assert seen["loss"] == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(seen["prediction"], prediction, atol=1e-5)


def test_what_the_chief_saved_and_exported_predicts_the_same(folder):
    expected = np.load(folder / "undisturbed-0.npz")["prediction"]
    x = np.concatenate([x for x, _ in multi_worker.held_out()])
    saved = keras.saving.load_model(folder / "undisturbed.keras")
    assert int(saved.layers[0].redraw_count) == STEPS // 2
    np.testing.assert_allclose(saved.predict(x, verbose=0), expected, atol=1e-6)
    served = keras.layers.TFSMLayer(
        folder / "undisturbed-export", call_endpoint="serve"
    )
    np.testing.assert_allclose(served(x), expected, atol=1e-6)


def test_a_job_goes_on_after_a_worker_was_killed(folder):
    expected = notes(folder, "undisturbed", 0)
    codes, printed = run_workers(folder, "killed", str(DIES_AT))
    assert codes[1] == -signal.SIGKILL, printed
    before = notes(folder, "killed", 1)
    assert before == expected[:DIES_AT]

    codes, printed = run_workers(folder, "killed")
    assert codes == [0, 0], printed
    assert notes(folder, "killed", 1) == before + expected[RESUMES_AFTER:]
    assert (
        notes(folder, "killed", 0)[-(STEPS - RESUMES_AFTER) :]
        == (expected[RESUMES_AFTER:])
    )
    wanted, seen = (
        np.load(folder / f"{run}-0.npz") for run in ("undisturbed", "killed")
    )
    np.testing.assert_array_equal(seen["prediction"], wanted["prediction"])
    assert not (folder / "killed-backup").exists()  # deleted after the last step


@pytest.mark.parametrize(
    ("resolver", "writes"),
    [
        (None, True),
        (types.SimpleNamespace(task_id=None), True),
        (types.SimpleNamespace(task_id=0), True),
        (types.SimpleNamespace(task_id=1), False),
    ],
)
def test_the_chief_alone_writes(resolver, writes, tmp_path):
    strategy = types.SimpleNamespace(cluster_resolver=resolver)
    assert is_chief(strategy) == writes
    callback = backup_and_restore(strategy, tmp_path / "backup")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    callback.delete_checkpoint = False
    model.fit(np.ones((2, 3)), np.ones((2, 1)), verbose=0, callbacks=[callback])
    assert (tmp_path / "backup").exists() == writes
