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
DIES_AT, RESUMES_AFTER = 3, 2  # in the second epoch; the last save ends the first


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
    """Notes of each step in order: step, loss, redraws and matrix."""
    lines = (folder / f"{run}-{worker}.txt").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_steps(noted, expected):
    for (step, loss, *drawn), (wanted_step, wanted_loss, *wanted) in zip(
        noted, expected, strict=True
    ):
        assert (step, drawn) == (wanted_step, wanted)
        assert loss == pytest.approx(wanted_loss, rel=1e-5)


def test_two_workers_train_as_one_process_also_after_one_was_killed(tmp_path):
    keras.utils.set_random_seed(0)  # as the chief
    model = multi_worker.build_model()
    note = multi_worker.Note(tmp_path / "one-0.txt")
    multi_worker.fit(model, [keras_performer.RedrawFeatures(2), note])
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

    loss = model.evaluate(multi_worker.held_out(), verbose=0)
    prediction = model.predict(multi_worker.held_out(), verbose=0)
    assert prediction.std() > 0.05
    for worker in range(2):
        seen = np.load(tmp_path / f"run-{worker}.npz")
        assert seen["loss"] == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(seen["prediction"], prediction, atol=1e-5)
    # the chief alone saves and exports
    x = np.concatenate([x for x, _ in multi_worker.held_out()])
    saved = keras.saving.load_model(tmp_path / "run.keras")
    assert int(saved.layers[0].redraw_count) == STEPS // 2
    np.testing.assert_allclose(saved.predict(x, verbose=0), prediction, atol=1e-5)
    served = keras.layers.TFSMLayer(tmp_path / "run-export", call_endpoint="serve")
    np.testing.assert_allclose(served(x), prediction, atol=1e-5)


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
