"""Definitions of the layers in `tests/cases.py`, on which code and files rely."""

import inspect
import json

import keras

from keras_performer import RedrawFeatures
from tests.cases import CASES
from tests.contract import tensors
from tests.golden.recording import FOLDER
from tests.golden.saved_models import weights

FILE = FOLDER / "definitions.json"


def all_definitions():
    """Returns the signatures of all classes, and definitions of all cases."""
    classes = {case.layer_class for case in CASES.values()} | {RedrawFeatures}
    signatures = {_registered(kind): _signature(kind) for kind in classes}
    return {
        "signatures": dict(sorted(signatures.items())),
        **{name: definition(name) for name in CASES},
    }


def definition(name):
    """Returns class, config, dtypes and weights of a layer in mixed precision.

    The config is without entries that equal the defaults of the signature.
    """
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    case = CASES[name]
    layer = case.make(name="layer", dtype="mixed_bfloat16")
    output = layer(*tensors(case.inputs()))
    defaults = inspect.signature(case.layer_class).parameters
    config = {
        key: _short(value)
        for key, value in layer.get_config().items()
        if key not in defaults or value != defaults[key].default
    }
    return {
        "class": _registered(case.layer_class),
        "config": json.loads(json.dumps(config)),
        "dtypes": [layer.variable_dtype, layer.compute_dtype, output.dtype.name],
        "weights": weights(layer),
    }


def write():
    """Writes the file, a line for each definition."""
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in all_definitions().items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _registered(kind):
    return keras.saving.get_registered_name(kind)


def _signature(kind):
    """Returns a signature without types, which differ between versions of Keras."""
    shown = inspect.signature(kind).replace(return_annotation=inspect.Signature.empty)
    bare = [p.replace(annotation=p.empty) for p in shown.parameters.values()]
    return str(shown.replace(parameters=bare))


def _short(value):
    """Shortens configs of Keras objects, without entries that are `None`."""
    if isinstance(value, (list, tuple)):
        return [_short(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "class_name" in value:
        name = value["registered_name"] or value["class_name"]
        return {name: _short(value["config"])} if value["config"] else name
    return {key: _short(one) for key, one in value.items() if one is not None}
