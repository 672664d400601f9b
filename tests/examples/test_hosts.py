"""Several hosts train on the batches of one host, and a launcher starts their programs.

    python -m tests.examples.test_hosts SHARDS ADDRESS,ADDRESS

runs the program on the first of two hosts. Each host reads its part of four batches,
and the program compares the parts with the whole batches.
"""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import data, sources
from examples.imagenet64.config import Config
from examples.imagenet64.convert import convert
from tests.examples import archives
from tests.ports import free_ports

ROOT = pathlib.Path(__file__).parents[2]
IMAGES = 11  # no multiple of the batch size or of the number of shards


def shards_of(folder, number, train=(7, 4)):
    archives.write_npz(folder / "npz", train=train)
    convert(str(folder / "npz"), str(folder / "shards"), shards=number)
    return str(folder / "shards")


@pytest.fixture(params=["photographs", "npz", "shards"])
def folder(request, tmp_path):
    if request.param == "photographs":
        return None
    shards_of(tmp_path, 3)
    return str(tmp_path / request.param)


def load(folder, start_step=0, seed=1, batch_size=4):
    config = Config(data_dir=folder, batch_size=batch_size, seed=seed)
    return dataclasses.replace(data.load(config), start_step=start_step)


def batches(images, count, *host):
    context = tf.distribute.InputContext(*host)
    return np.stack([*images.training_batches(context).take(count).as_numpy_iterator()])


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "replicas", "start"), [(2, 4, 7), (4, 4, 2)])
def test_hosts_read_the_batches_of_one_also_when_resumed(
    folder, hosts, replicas, start
):
    whole = batches(load(folder), 10)  # three epochs
    assert (batches(load(folder, seed=4), 4) != whole[:4]).mean() > 0.5
    images, steps = load(folder, start), 10 - start
    parts = [
        batches(images, steps * replicas // hosts, hosts, host, replicas)
        for host in range(hosts)
    ]
    assert parts[0].shape[1:] == (4 // replicas, 64, 64, 3)
    together = np.reshape(parts, (hosts, steps, -1, 64, 64, 3)).swapaxes(0, 1)
    np.testing.assert_array_equal(together.reshape(whole[start:].shape), whole[start:])
    with pytest.raises(ValueError, match="divisible"):
        images.training_batches(tf.distribute.InputContext(3, 0, 3))


@pytest.mark.parametrize("kind", ["npz", "shards"])
def test_an_epoch_has_every_image_once_in_an_order_of_its_own(kind, tmp_path):
    shards_of(tmp_path, 3)
    folder = str(tmp_path / kind)
    every = data.load(Config(data_dir=folder)).training_split
    every = np.concatenate([every.read(i) for i in range(len(every.block_sizes))])
    epochs = 7  # more images than are read in parallel
    stream = batches(load(folder, batch_size=1), epochs * IMAGES)[:, 0]
    assert len(stream) > sources.PARALLEL_READS
    first, second, *_ = each = np.split(stream, epochs)
    for epoch in each:
        assert archives.as_set(epoch) == archives.as_set(every)
        assert (epoch != every).any()
    assert (first != second).any()


def test_shards_are_read_without_python(tmp_path):
    # A host of a TPU slice has files but no program, so the dataset must be a graph.
    shards_of(tmp_path, 2)

    def operations(folder):
        dataset = load(str(folder)).training_batches(tf.distribute.InputContext())
        variant = tf.data.experimental.to_variant(dataset)
        graph = tf.compat.v1.GraphDef()
        graph.ParseFromString(
            tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()
        )
        functions = [function.node_def for function in graph.library.function]
        return {node.op for nodes in (graph.node, *functions) for node in nodes}

    assert {"TFRecordDatasetV2", "PrefetchDataset"} <= operations(tmp_path / "shards")
    assert not any("Py" in op for op in operations(tmp_path / "shards"))
    assert any("Py" in op for op in operations(tmp_path / "npz"))


def test_a_host_reads_its_own_images_only(tmp_path):
    images = load(shards_of(tmp_path, 1, train=(16,)))
    own = set(archives.as_set(batches(images, 4)[:, 0]))
    # Damage images that the first of four hosts does not read in the first epoch.
    path = tmp_path / "shards" / "train-00000-of-00001.tfrecord"
    content = bytearray(path.read_bytes())
    for first in range(0, len(content), sources.RECORD_BYTES):
        if bytes(content[first + 12 : first + 12 + 12288]) not in own:
            content[first + 100] ^= 1
    path.write_bytes(content)
    assert set(archives.as_set(batches(images, 4, 4, 0, 4)[:, 0])) == own
    with pytest.raises(tf.errors.DataLossError):
        batches(images, 4)


# -- The launcher, with a fake `gcloud` that writes down its arguments. Its `ssh` runs
#    the command in the folder `home`, whose `python` also writes down its arguments.


CONFIGS = ROOT / "tpu_configs"
GCLOUD = """
echo "$@" >> calls.txt
if [ "$4" = describe ]; then echo '10.0.0.1;10.0.0.2'; fi
if [ "$4" = ssh ]; then cd home && bash -c "${8#--command=}"; fi
"""
PYTHON = f"""
if [ "$1" = -c ]; then exec {sys.executable} "$@"; fi
if [ "$1" = tpu_configs/server.py ]; then trap '' TERM; exec tail -f /dev/null; fi
printf '%s\\n' "$TPU_LOAD_LIBRARY" "$@" > program.txt
"""


def test_train_starts_servers_everywhere_and_the_program_on_the_first_host(
    tmp_path, monkeypatch
):
    host = tmp_path / "home" / "keras_performer"  # of all hosts
    for path, text in {
        tmp_path / "bin/gcloud": GCLOUD,
        host / "bin/python": PYTHON,
        host / ".venv/bin/activate": "\nPATH=$PWD/bin:$PATH\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash{text}")
        path.chmod(0o755)
    (host / "tpu_configs").symlink_to(CONFIGS)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    flags = ["examples.imagenet64.train", "--output_dir", "runs/a run"]
    launch = [CONFIGS / "launch.sh", "a-slice", "us-central2-b", "train", *flags]
    servers = []
    try:
        for _ in range(2):
            subprocess.run(launch, check=True, timeout=60)
            servers.append(int((host / "server.pid").read_text()))
            os.kill(servers[-1], 0)  # raises unless the server runs
        with pytest.raises(ProcessLookupError):
            os.kill(servers[0], 0)  # the second launch ended it
    finally:
        os.kill(servers[-1], signal.SIGKILL)
    program = (host / "program.txt").read_text().splitlines()
    tpu = "grpc://10.0.0.1:8470,10.0.0.2:8470"
    assert program == ["0", "-m", *flags, "--tpu", tpu]
    describe, of_servers, of_program, *_ = (
        (tmp_path / "calls.txt").read_text().splitlines()
    )
    assert describe.startswith("compute tpus tpu-vm describe a-slice --zone=us-")
    assert "--worker=all" in of_servers and "--worker=0" in of_program
    assert ". tpu_configs/environment.sh && { nohup python tpu_con" in of_servers


# -- Two servers as the launcher starts them, on one machine and without a TPU.


@pytest.mark.slow
def test_hosts_read_their_images_for_a_program_on_one_of_them(tmp_path):
    shards, ports = shards_of(tmp_path, 3), free_ports(2)
    server = [sys.executable, CONFIGS / "server.py"]
    servers = [
        subprocess.Popen([*server, str(port)], stderr=subprocess.DEVNULL)
        for port in ports
    ]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    try:
        program = subprocess.run(
            [sys.executable, "-m", "tests.examples.test_hosts", shards, addresses],
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


def main(folder, addresses):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(f"grpc://{addresses}")
    tf.config.experimental_connect_to_cluster(resolver)
    images = load(folder)
    here = iter(images.train)
    hosts = []
    for host in range(2):
        with tf.device(f"/job:worker/task:{host}/device:CPU:0"):
            context = tf.distribute.InputContext(2, host, 2)
            hosts.append(iter(images.training_batches(context)))
    for _ in range(4):
        parts = [next(host) for host in hosts]
        for host, part in enumerate(parts):
            assert f"/job:worker/replica:0/task:{host}" in part.device, part.device
        np.testing.assert_array_equal(np.concatenate(parts), next(here))
    print("the hosts read the batches")
    try:
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except tf.errors.NotFoundError as error:
        print(error.message)


if __name__ == "__main__":
    main(*sys.argv[1:])
