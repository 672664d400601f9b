"""The environments that contenders run in, and the processes in them."""

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / ".bench"

# Environment: the module of its contenders in `benchmarks`, and what pip installs
# (`None`: the environment that this program runs in).
ENVIRONMENTS = {
    "keras": ("contenders.keras_layers", None),
    "decoding": ("contenders.decoding_layers", None),
    "kernel_attention": (
        "contenders.kernel_attention",
        ["tf-models-official==2.20.0", "tensorflow==2.20.*", "tf-keras==2.20.*"],
    ),
    "torch": (
        "contenders.torch_layers",
        ["torch==2.*", "performer-pytorch==1.1.4", "torch_geometric==2.8.*", "numpy"],
    ),
}


class Missing(Exception):
    """An environment that is not installed, or does not start."""


class Ended(RuntimeError):
    """A process that is no longer there, and its programs with it."""


class Worker:
    """One process; see `benchmarks/worker.py`.

    Args:
        environment: str, a key of `environments`.
        threads: int.
        environments: dict as `ENVIRONMENTS`.
        checkout: str, the folder whose keras_performer it imports, or `None` for this
            one.
    """

    def __init__(self, environment, threads, environments=ENVIRONMENTS, checkout=None):
        module, packages = environments[environment]
        python = pathlib.Path(sys.executable)
        if packages is not None:
            python = FOLDER / environment / "bin" / "python"
        if not python.exists():
            raise Missing(f"{environment}: not installed, the command installs it")
        FOLDER.mkdir(exist_ok=True)
        with open(FOLDER / f"{environment}.log", "a") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "benchmarks.worker"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        module = f"benchmarks.{module}"
        try:
            self.versions = self.ask(
                do="start", module=module, threads=threads, checkout=checkout
            )
        except RuntimeError as error:
            self.stop()
            raise Missing(f"{environment}: {error}") from error

    def ask(self, **request):
        """The answer to one request; `RuntimeError` says what went wrong there."""
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise Ended(f"the process ended with code {code} (memory?)")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def stop(self):
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):  # a request that nobody read
                stream.close()


def install(environment, environments=ENVIRONMENTS):
    """Makes the environment of a peer with pip, unless it is there already."""
    _, packages = environments[environment]
    folder = FOLDER / environment
    installed = folder / "installed.txt"  # what, once pip is done
    if packages is None or (
        installed.exists() and installed.read_text().split() == packages
    ):
        return
    print(f"Installing {' '.join(packages)} into {folder}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    for command in (
        [sys.executable, "-m", "venv", folder],
        [*pip, "--disable-pip-version-check", *packages],
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            last = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
            raise Missing(f"{environment}: {' '.join(last) or 'pip failed'}")
    installed.write_text("\n".join(packages))
