"""Public functions have type hints; `make lint` checks the calls in `calls.py`."""

import inspect

import keras

import keras_performer
from keras_performer import callbacks, feature_maps, layers, models, ops

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
