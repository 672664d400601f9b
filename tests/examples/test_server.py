"""Two servers as `launch.sh` starts them, on one machine and without a TPU."""

import pathlib
import subprocess
import sys

import pytest

from examples.imagenet64.convert import convert
from tests.examples import archives
from tests.ports import free_ports

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_hosts_read_their_images_for_a_program_on_one_of_them(tmp_path):
    archives.write_npz(tmp_path / "npz", train=(7, 4))
    convert(str(tmp_path / "npz"), str(tmp_path / "shards"), shards=3)
    ports = free_ports(2)
    servers = [
        subprocess.Popen(
            [sys.executable, ROOT / "tpu_configs" / "server.py", str(port)],
            stderr=subprocess.DEVNULL,
        )
        for port in ports
    ]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    try:
        program = subprocess.run(
            [sys.executable, "-m", "tests.examples.two_hosts"]
            + [str(tmp_path / "shards"), addresses],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        for server in servers:
            server.kill()
            server.wait()
    assert program.returncode == 0, program.stderr
    assert program.stdout.startswith("the hosts read the batches\n")
    assert "TPUs not found in the cluster" in program.stdout
