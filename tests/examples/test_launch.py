"""The launcher, with a `gcloud` that notes its arguments in place of Google's.

`ssh` runs its command in the folder `home`, whose `python` notes its arguments too.
"""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

CONFIGS = pathlib.Path(__file__).parents[2] / "tpu_configs"
GCLOUD = """
printf '%s\\n' "$@" --- >> calls.txt
if [ "$4" = describe ]; then echo '10.0.0.1;10.0.0.2;10.0.0.3;10.0.0.4'; fi
if [ "$4" = ssh ]; then cd home && bash -c "${8#--command=}"; fi
"""
PYTHON = f"""
if [ "$1" = -c ]; then exec {sys.executable} "$@"; fi
if [ "$1" = tpu_configs/server.py ]; then trap '' TERM; exec tail -f /dev/null; fi
printf '%s\\n' "$TPU_LOAD_LIBRARY" "$@" > program.txt
"""


def write_command(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash{text}")
    path.chmod(0o755)


@pytest.fixture
def host(tmp_path):
    """The repository's folder on all hosts, which are one here."""
    folder = tmp_path / "home" / "keras_performer"
    write_command(folder / "bin" / "python", PYTHON)
    write_command(folder / ".venv" / "bin" / "activate", "\nPATH=$PWD/bin:$PATH\n")
    (folder / "tpu_configs").symlink_to(CONFIGS)
    yield folder
    if (folder / "server.pid").exists():
        os.kill(server(folder), signal.SIGKILL)


def server(host):
    return int((host / "server.pid").read_text())


@pytest.fixture
def launch(tmp_path, host):
    write_command(tmp_path / "bin" / "gcloud", GCLOUD)

    def run(*arguments):
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            [CONFIGS / "launch.sh", *arguments],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
        )
        notes = tmp_path / "calls.txt"
        calls = notes.read_text().split("---\n") if notes.exists() else []
        return done, [call.splitlines() for call in calls if call]

    return run


TPU_VM = ["compute", "tpus", "tpu-vm"]


def test_run_gives_every_host_the_same_command(launch, host):
    command = ["python", "-m", "a.module", "a b", "it's", "$HOME", ""]
    done, calls = launch("a-slice", "us-central2-b", "run", *command)
    assert done.returncode == 0, done.stderr
    (call,) = calls
    assert call[:4] == [*TPU_VM, "ssh"] and "a-slice" in call
    assert "--zone=us-central2-b" in call and "--worker=all" in call
    assert (host / "program.txt").read_text().splitlines() == ["", *command[1:]]


def test_train_starts_servers_everywhere_and_the_program_on_the_first_host(
    launch, host
):
    flags = ["--config", "tpu_configs/v4-32.yaml", "--output_dir", "runs/a run"]
    done, calls = launch("a-slice", "us-central2-b", "train", *flags)
    assert done.returncode == 0, done.stderr
    describe, servers, program = calls
    assert describe[:5] == [*TPU_VM, "describe", "a-slice"]
    assert "--worker=all" in servers and "--worker=0" in program
    assert ". tpu_configs/environment.sh && { nohup python tpu_con" in servers[-1]
    os.kill(server(host), 0)  # fails unless it runs
    tpu = "grpc://10.0.0.1:8470,10.0.0.2:8470,10.0.0.3:8470,10.0.0.4:8470"
    program = (host / "program.txt").read_text().splitlines()
    module = ["-m", "examples.imagenet64.train"]
    assert program == ["0", *module, *flags, "--tpu", tpu]


def test_train_again_ends_the_old_server_first(launch, host):
    launch("a-slice", "zone", "train", "--seed", "1")
    old = server(host)
    done, _ = launch("a-slice", "zone", "train", "--seed", "1")
    assert done.returncode == 0, done.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(old, 0)
    os.kill(server(host), 0)


@pytest.mark.parametrize(
    "arguments", [(), ("a-slice", "zone", "run"), ("a-slice", "zone", "walk", "x")]
)
def test_a_mistake_shows_the_usage(launch, arguments):
    done, calls = launch(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("Usage:") and not calls
