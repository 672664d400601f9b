"""Everything public says what it takes and returns, and a checker finds wrong calls."""

import inspect
import pathlib
import shutil
import subprocess
import sys

import keras
import pytest

import keras_performer
from keras_performer import callbacks, feature_maps, layers, models, ops

ROOT = pathlib.Path(__file__).parents[2]
MODULES = (keras_performer, callbacks, feature_maps, layers, models, ops)
PUBLIC = {
    getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if not inspect.ismodule(getattr(module, name))
}


def functions():
    """Names and functions: what is called, and how what is called is made."""
    for public in sorted(PUBLIC, key=lambda x: x.__name__):
        if not inspect.isclass(public):
            yield public.__name__, public
            continue
        if "__init__" in vars(public):
            yield f"{public.__name__}.__init__", public.__init__
        is_layer = issubclass(public, keras.layers.Layer)
        if is_layer and not issubclass(public, keras.Model) and "call" in vars(public):
            yield f"{public.__name__}.call", public.call


def test_everything_public_has_hints():
    found = dict(functions())
    assert {"generate", "PerformerAttention.__init__", "AttentionLayer.call"} <= set(
        found
    )
    without = []
    for name, function in found.items():
        signature = inspect.signature(function)
        missing = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.annotation is parameter.empty and parameter.name != "self"
        ]
        if signature.return_annotation is signature.empty:
            missing.append("return")
        if missing:
            without.append((name, missing))
    assert without == []


@pytest.mark.slow
def test_the_checker_finds_a_wrong_call(tmp_path):
    # a call that `calls.py` marks as wrong, without the mark
    text = (ROOT / "tests/hints/calls.py").read_text()
    marked = [line for line in text.splitlines() if "type: ignore" in line]
    assert len(marked) > 20
    unmarked = text.replace("  # type: ignore[call-arg]", "", 1)
    (tmp_path / "calls.py").write_text(unmarked)
    # what `make lint` has just checked, which takes less time to read
    linted, cache = ROOT / ".mypy_cache", tmp_path / "cache"
    if linted.exists():
        shutil.copytree(linted, cache)
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml"]
    process = subprocess.run(
        [*command, "--cache-dir", cache, tmp_path / "calls.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1, process.stdout + process.stderr
    (error,) = [x for x in process.stdout.splitlines() if ": error: " in x]
    assert 'Missing positional argument "key_dim"' in error
