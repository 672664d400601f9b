"""The whole example on two machines, which are two processes on this one."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from examples.imagenet64 import train
from examples.imagenet64.convert import convert
from tests.examples import archives
from tests.ports import free_ports

ROOT = pathlib.Path(__file__).parents[2]
FLAGS = """--num_layers 1 --num_heads 1 --hidden_dim 6 --intermediate_dim 4
    --batch_size 2 --held_out_images 4 --num_samples 0
    --num_completions 0 --warmup_steps 1 --every_n_steps 2 --num_steps 4
    --steps_per_epoch 2 --max_minutes null --control false
    --attention none""".split()


@pytest.mark.slow
def test_two_workers_train_what_one_device_trains(tmp_path, uncompiled):
    archives.write_npz(tmp_path / "npz", train=(13,), validation=4)
    convert(str(tmp_path / "npz"), str(tmp_path / "shards"), shards=2)
    flags = [*FLAGS, "--data_dir", str(tmp_path / "shards")]
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = []
    for index in range(2):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        places = f"--checkpoint_dir {tmp_path}/shared --output_dir {tmp_path}/{index}"
        workers.append(
            subprocess.Popen(
                [sys.executable, "-m", "examples.imagenet64.train", *flags]
                + ["--strategy", "multi_worker", *places.split()],
                env={**os.environ, "TF_CONFIG": json.dumps(task)},
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for worker in workers:
            _, said = worker.communicate(timeout=600)
            assert worker.returncode == 0, said
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    one = train.main([*flags, "--output_dir", "one"])
    assert f"{one['this model']:.3f}" in (tmp_path / "0/table.txt").read_text()
    weights = [
        keras.models.load_model(f"{run}/model.keras").get_weights()
        for run in ("one", "0")
    ]
    for alone, shared in zip(*weights, strict=True):
        np.testing.assert_allclose(shared, alone, rtol=1e-3, atol=1e-4)
    assert not (tmp_path / "1").exists()  # the chief alone writes
