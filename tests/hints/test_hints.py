"""Public functions have type hints, and a checker finds wrong calls."""

import ast
import inspect
import pathlib
import tomllib

import keras

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
    """Yields names and functions: public functions, constructors and `call`."""
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
        hints = {x.name: x.annotation for x in signature.parameters.values()}
        hints = {**hints, "return": signature.return_annotation, "self": None}
        missing = [x for x, hint in hints.items() if hint is inspect.Signature.empty]
        without += [(name, missing)] if missing else []
    assert without == []


def test_the_checker_says_which_wrong_calls_it_does_not_find():
    """Checks that `make lint`, which takes a minute, checks `calls.py` in this way."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert "tests/hints" in options["files"] and options["warn_unused_ignores"]
    text = (ROOT / "tests/hints/calls.py").read_text()
    (wrong,) = (x for x in ast.parse(text).body if getattr(x, "name", "") == "wrong")
    # each statement is an error with a comment
    assert text.count("# type: ignore[") == len(wrong.body) > 20
