"""The service of `examples/serving` in a process of its own, on one core."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request

from benchmarks import worker, workers


class Service:
    """A process that serves one exported model, and the memory it takes.

    Args:
        folder: the exported model.
        log: path of a file for what it prints.
        limits: dict of `examples.serving.requests.Limits`.
    """

    def __init__(self, folder, log, limits):
        self.port = free_port()
        options = [f"--limits.{name}={value}" for name, value in limits.items()]
        command = [sys.executable, "-m", "examples.serving", str(folder)]
        with on_one_core(), open(log, "w") as file:
            self._process = subprocess.Popen(
                [*command, f"--port={self.port}", *options],
                cwd=workers.ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait(log)
        except BaseException:
            self.stop()
            raise

    def _wait(self, log):
        while self._process.poll() is None:  # a busy machine may take minutes
            try:
                address = f"http://127.0.0.1:{self.port}/status"
                with urllib.request.urlopen(address, timeout=5):
                    return
            except OSError:  # it does not listen yet
                time.sleep(0.2)
        with open(log) as file:
            last = file.read().strip().splitlines()[-1:]
        raise RuntimeError(f"The service did not start: {' '.join(last)}")

    def resident(self, field):
        """Bytes of the process in memory, as in `worker.resident`."""
        return worker.resident(field, self._process.pid)

    def processor_seconds(self):
        """What it has used so far; `None` where the system does not tell."""
        try:
            with open(f"/proc/{self._process.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except FileNotFoundError:  # only Linux tells
            return None
        user, system = int(fields[11]), int(fields[12])
        return (user + system) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def on_one_core():
    """Processes that are started within have one core; this one keeps its own."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
