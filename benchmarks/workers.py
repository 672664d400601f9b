"""The environments that contenders run in, and the processes in them."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / ".bench"

# Environment: the module of its contenders, and what pip installs (`None`: the
# environment that this program runs in).
ENVIRONMENTS = {
    "keras": ("keras_layers", None),
    "kernel_attention": (
        "kernel_attention",
        ["tf-models-official==2.20.0", "tensorflow==2.20.*", "tf-keras==2.20.*"],
    ),
    "torch": ("torch_layers", ["torch==2.15.*", "performer-pytorch==1.1.4", "numpy"]),
}


class Missing(Exception):
    """An environment that is not installed, or does not start."""


class Worker:
    """One process; see `benchmarks/worker.py`."""

    def __init__(self, environment, threads):
        module, packages = ENVIRONMENTS[environment]
        python = pathlib.Path(sys.executable)
        if packages is not None:
            python = FOLDER / environment / "bin" / "python"
        if not python.exists():
            raise Missing(f"{environment}: not installed, `make bench` installs it")
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(FOLDER / f"{environment}.log", "a"),
            text=True,
        )
        module = f"benchmarks.contenders.{module}"
        try:
            self.versions = self.ask(do="start", module=module, threads=threads)
        except RuntimeError as error:
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
            raise RuntimeError(f"the process ended with code {code} (memory?)")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def stop(self):
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            stream.close()


def install(environment):
    """Makes the environment of a peer with pip."""
    _, packages = ENVIRONMENTS[environment]
    folder = FOLDER / environment
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *packages], check=True)
