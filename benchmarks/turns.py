"""Measures programs of several environments that take turns in rounds."""

import contextlib
import json
import shutil
import subprocess
import sys

from benchmarks import runner
from benchmarks.runner import ROOT

FOLDER = ROOT / ".bench"
# Options of commands with programs that take turns; `limit` is in seconds of a run.
OPTIONS = {"rounds": 9, "threads": 2, "limit": 60.0, "report_only": False}
# Environments: the module of contenders in `benchmarks`, and packages for pip (`None`:
# the environment of this program).
ENVIRONMENTS = {
    "ours": ("contenders.ours", None),
    "kernel_attention": (
        "contenders.model_garden",
        ["tf-models-official==2.20.0", "tensorflow==2.20.*", "tf-keras==2.20.*"],
    ),
    "torch": (
        "contenders.torch_layers",
        ["torch==2.*", "performer-pytorch==1.1.4", "numpy"],
    ),
    "keras_hub": ("contenders.hub", ["keras-hub==0.32.*", "tensorflow==2.21.*"]),
}
# A program with longer runs takes part in fewer rounds.
SLOW_SECONDS, SLOW_ROUNDS = 2, 5
# Entries of a row that are no part of its case.
MEASURED = {"times", "reason", "first_call_seconds", "peak_bytes"}


class Missing(Exception):
    """An environment that cannot be installed, or does not start."""


class Ended(RuntimeError):
    """A process that ended, so that its programs are lost."""


class Pool:
    """A process for each environment, started by the first request, also after an end.

    `missing` is a dict from unavailable environments to the reason. `versions` has the
    versions of libraries in each environment. See `benchmarks/worker.py`.
    """

    def __init__(self, threads, missing):
        self.missing, self.versions = dict(missing), {}
        self._threads, self._processes = threads, {}

    def ask(self, environment, **request):
        """Returns the answer to a request; raises `RuntimeError` for an error there."""
        if environment in self.missing:
            raise Missing(self.missing[environment])
        if environment not in self._processes:
            self._start(environment)
        process = self._processes[environment]
        try:
            print(json.dumps(request), file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = process.wait()
            self._stop(environment)
            raise Ended(f"the process ended with code {code} (memory?)")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def _start(self, environment):
        module, packages = ENVIRONMENTS[environment]
        python = sys.executable
        if packages is not None:
            python = FOLDER / environment / "bin" / "python"
        FOLDER.mkdir(exist_ok=True)
        with open(FOLDER / f"{environment}.log", "a") as log:
            self._processes[environment] = subprocess.Popen(
                [python, "-m", "benchmarks.worker"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        request = dict(do="start", module=f"benchmarks.{module}", threads=self._threads)
        try:
            self.versions[environment] = self.ask(environment, **request)
        except RuntimeError as error:
            self._stop(environment)
            self.missing[environment] = f"{environment}: {error}"
            raise Missing(self.missing[environment]) from error

    def _stop(self, environment):
        process = self._processes.pop(environment, None)  # an end has stopped it before
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):  # a request was not read
                    stream.close()

    def drop(self):
        """Makes all processes drop their programs."""
        for environment in list(self._processes):
            with contextlib.suppress(Ended):  # has no programs any more
                self.ask(environment, do="drop")

    def stop(self):
        for environment in list(self._processes):
            self._stop(environment)


def install(environment):
    """Makes the environment of a peer with pip, unless it exists."""
    _, packages = ENVIRONMENTS[environment]
    folder = FOLDER / environment
    installed = folder / "installed.txt"  # the packages, written after pip
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


@contextlib.contextmanager
def session(threads, environments=()):
    """Installs environments; yields a `Pool`, and results to be filled."""
    missing = {}
    for environment in environments:
        try:
            install(environment)
        except Missing as error:
            missing[environment] = str(error)
            print(f"Missing: {error}", flush=True)
    pool = Pool(threads, missing)
    try:
        yield (
            pool,
            {
                "machine": runner.describe(threads),
                "versions": pool.versions,
                "rows": [],
                "missing": pool.missing,
                "memory": [],
            },
        )
    finally:
        pool.stop()


def measured(options, path, groups, show, environments=(), alone=None, **more):
    """Measures and returns results; with `--report-only` reads them from the file.

    Args:
        options: has `OPTIONS`.
        path: path of the file, written after each group.
        groups: function of the results so far that returns an iterable of lists of
            rows that take turns.
        show: function that prints results and the last rows.
        environments: environments to install.
        alone: function of the results that returns rows for measurements of memory,
            each in a process that runs nothing else; or `None`.
        **more: further entries of the results.
    """
    if options.report_only:
        return runner.read(path)
    with session(options.threads, environments) as (pool, results):
        results |= more
        for rows in groups(results):
            take_turns(rows, pool, options.rounds, options.limit)
            results["rows"] += rows
            runner.note_load(results["machine"])
            runner.save(path, results)
            show(results, rows)
        for row in alone(results) if alone else ():
            pool.stop()
            take_turns([row], pool, rounds=0, limit=options.limit)
            results["memory"].append(row)
            runner.save(path, results)
            show(results, [row])
    return results


def take_turns(rows, pool, rounds, limit):
    """Makes the programs of all rows, runs each once unmeasured, then once a round.

    The unmeasured run is for TensorFlow, which optimizes a function again if others
    were made since its first call. Slow programs only take part in some rounds, spread
    evenly, so that medians are of the same time. Rows get the measurements, or a reason
    why there are none; rows that have a reason are skipped.
    """
    for row in rows:
        if row["reason"] is None:
            answer = ask(row, rows, pool, do="make")
            row.update(answer or {})
            if answer and answer["first_call_seconds"] > limit and rounds:
                took = f"{answer['first_call_seconds']:.0f} s"
                row["reason"] = f"its first call took {took}, the limit is {limit:g} s"
    for row in rows:
        if row["reason"] is None and rounds:
            ask(row, rows, pool, do="run")
    for turn in range(rounds):
        for row in rows:
            if row["reason"] is None and takes_part(row, turn, rounds):
                seconds = ask(row, rows, pool, do="run")
                if seconds is not None:
                    row["times"].append(seconds)
    pool.drop()


def row(case, reason=None):
    return {**case, "times": [], "reason": reason}


def takes_part(row, turn, rounds):
    """Returns True if the row's program runs in a round: slow programs skip some."""
    slow = row["times"] and row["times"][0] > SLOW_SECONDS
    if not slow or rounds <= SLOW_ROUNDS:
        return True
    spread = (i * (rounds - 1) // (SLOW_ROUNDS - 1) for i in range(SLOW_ROUNDS))
    return turn in spread


def ask(row, rows, pool, do):
    """Asks a row's program; on failure returns `None` and sets the row's reason."""
    case = {key: value for key, value in row.items() if key not in MEASURED}
    name = json.dumps(case)
    try:
        return pool.ask(row["environment"], do=do, name=name, case=case)
    except Ended as error:
        row["reason"] = str(error)
        # the next process has to make the lost programs again
        for other in rows:
            made = "first_call_seconds" in other and other["reason"] is None
            if made and other["environment"] == row["environment"]:
                if ask(other, rows, pool, do="make"):
                    ask(other, rows, pool, do="run")
    except (Missing, RuntimeError) as error:
        row["reason"] = str(error)
