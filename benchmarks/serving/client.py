"""Runs the service of `examples/serving` on one core, and concurrent sessions."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

from benchmarks import runner


class Service:
    """A process that serves one exported model with `examples.serving.requests.Limits`.

    The process prints into a log.
    """

    def __init__(self, folder, log, limits):
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            self.port = listening.getsockname()[1]
        options = [f"--limits.{name}={value}" for name, value in limits.items()]
        command = [sys.executable, "-m", "examples.serving", str(folder)]
        with open(log, "w") as file:
            self._process = subprocess.Popen(
                [*command, f"--port={self.port}", *options],
                cwd=runner.ROOT,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        # before TensorFlow counts the cores
        os.sched_setaffinity(self._process.pid, {min(os.sched_getaffinity(0))})
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
            except OSError:  # the service does not listen yet
                time.sleep(0.2)
        with open(log) as file:
            last = file.read().strip().splitlines()[-1:]
        raise RuntimeError(f"The service did not start: {' '.join(last)}")

    def stop(self):
        self._process.kill()
        self._process.wait()


async def session(port, tokens, new_tokens):
    """Returns times at which a session was sent and each token arrived, in seconds.

    Raises `RuntimeError` if the service refuses the session, or ends it early.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {"tokens": tokens, "max_new_tokens": new_tokens, "temperature": 0}
    body = json.dumps(body).encode()
    sent = time.perf_counter()
    writer.write(
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    arrivals, others = [], []
    # header lines and chunk sizes come between lines of events
    async for line in reader:
        if not line.startswith(b"data: "):
            others.append(line)
            continue
        event = json.loads(line.removeprefix(b"data: "))
        if "token" not in event:
            others.append(line)
            break
        arrivals.append(time.perf_counter())
    writer.close()
    await writer.wait_closed()
    if len(arrivals) != new_tokens:
        said = b" ".join(line.strip() for line in (*others[:1], *others[-2:]))
        raise RuntimeError(
            f"{new_tokens} tokens must come from the service. Received: "
            f"{len(arrivals)} tokens, and {said.decode(errors='replace')[:300]}"
        )
    return sent, arrivals


def drive(port, prompts, new_tokens):
    """Runs concurrent sessions, one for each prompt, with the service on a port.

    Returns a list of results of `session`.
    """

    async def all_at_once():
        return await asyncio.gather(
            *(session(port, tokens, new_tokens) for tokens in prompts)
        )

    return asyncio.run(all_at_once())
