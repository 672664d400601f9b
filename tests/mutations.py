"""Breaks the package in many small ways, and reports the ones that no test notices.

    python -m tests.mutations
    python -m tests.mutations --word rotary

`mutations.txt` names a file of the package and the tests that must fail, as arguments
of pytest; below come the text to replace, which occurs once in the file, and the new
text. It works on a copy, and takes about 20 minutes on two CPU cores.
"""

import argparse
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).parents[1]


class Mutation(typing.NamedTuple):
    file: str
    tests: str
    old: str
    new: str

    def apply(self, folder):
        """Returns the file's path in a checkout, and its text before and after."""
        path = folder / "keras_performer" / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} must contain this text once: {self.old}")
        return path, text, text.replace(self.old, self.new)


def read_mutations():
    """Yields the mutations; lines without - and + name the file and the tests."""
    file = tests = ""
    lines = iter((ROOT / "tests" / "mutations.txt").read_text().splitlines())
    for line in lines:
        if line.startswith("-"):
            yield Mutation(file, tests, line[2:], next(lines)[2:])
        else:
            file, tests = line.split(maxsplit=1)


def is_noticed(mutation, folder):
    """Runs the tests of a mutation in a copy of the checkout."""
    path, text, broken = mutation.apply(folder)
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    options = {"cwd": folder / "tests", "env": environment, "capture_output": True}
    path.write_text(broken)
    try:
        given = [*command, *shlex.split(mutation.tests)]
        code = subprocess.run(given, **options, check=False).returncode
    finally:
        path.write_text(text)
    if code not in (0, 1):
        raise ValueError(f"pytest cannot run these tests: {mutation.tests}")
    return code == 1


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("--word", default="", help="of the mutations to try")
    word, survivors = parser.parse_args().word, 0
    chosen = [x for x in read_mutations() if word in " ".join(x)]
    if not chosen:
        raise SystemExit(f"No mutation has the word {word!r}.")
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs", "site"))
        for mutation in chosen:
            noticed = is_noticed(mutation, copy)
            survivors += not noticed
            said = "noticed " if noticed else "SURVIVED"
            print(said, mutation.file, mutation.old, sep="  ", flush=True)
    print(f"{survivors} of {len(chosen)} survived")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
