"""The launcher, with a `gcloud` that notes its arguments in place of Google's."""

import os
import pathlib
import subprocess

import pytest

LAUNCH = pathlib.Path(__file__).parents[2] / "tpu_configs" / "launch.sh"
GCLOUD = """#!/usr/bin/env bash
printf '%s\\n' "$@" --- >> calls.txt
if [ "$4" = describe ]; then echo '10.0.0.1;10.0.0.2;10.0.0.3;10.0.0.4'; fi
"""


@pytest.fixture
def gcloud(tmp_path):
    path = tmp_path / "bin" / "gcloud"
    path.parent.mkdir()
    path.write_text(GCLOUD)
    path.chmod(0o755)

    def launch(*arguments):
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            [LAUNCH, *arguments],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        notes = tmp_path / "calls.txt"
        calls = notes.read_text().split("---\n") if notes.exists() else []
        return done, [call.splitlines() for call in calls if call]

    return launch


TPU_VM = ["compute", "tpus", "tpu-vm"]


def test_run_gives_every_host_the_same_command(gcloud):
    done, calls = gcloud("a-slice", "us-central2-b", "run", "pip", "list")
    assert done.returncode == 0, done.stderr
    assert calls == [
        [
            *TPU_VM,
            *("ssh", "a-slice", "--zone=us-central2-b", "--worker=all"),
            "--command=cd keras_performer && . .venv/bin/activate && pip list",
        ]
    ]


def test_train_starts_servers_everywhere_and_the_program_on_the_first_host(gcloud):
    flags = "--config", "tpu_configs/v4-32.yaml", "--output_dir", "runs/a run"
    done, calls = gcloud("a-slice", "us-central2-b", "train", *flags)
    assert done.returncode == 0, done.stderr
    describe, servers, program = calls
    assert describe[:5] == [*TPU_VM, "describe", "a-slice"]
    assert "--worker=all" in servers and "--worker=0" in program
    assert "nohup python tpu_configs/server.py 8470" in servers[-1]
    assert program[-1].endswith(
        "TPU_LOAD_LIBRARY=0 python -m examples.imagenet64.train "
        "--config tpu_configs/v4-32.yaml --output_dir runs/a\\ run --tpu grpc://"
        "10.0.0.1:8470,10.0.0.2:8470,10.0.0.3:8470,10.0.0.4:8470"
    )


@pytest.mark.parametrize("arguments", [(), ("a-slice", "zone", "walk", "x")])
def test_a_mistake_shows_the_usage(gcloud, arguments):
    done, calls = gcloud(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("Usage:") and not calls
