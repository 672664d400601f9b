"""Public classes and functions have docstrings with defaults, and type hints."""

import inspect
import re

import pytest

import keras_performer
from keras_performer import conversion, feature_maps, layers, models, ops, testing, zoo

PARTS = (
    keras_performer,
    layers,
    zoo,
    models,
    conversion,
    feature_maps,
    testing,
    ops,
)
# A docstring begins with a noun or a verb.
NO_FIRST_WORDS = (
    "What Which Whether How Where When Who Whom Why As Of It Its That This These Those"
).split()
ARGS = re.compile(r"^Args:\n((?: {4}.*\n?|\n(?= {4}))+)", re.MULTILINE)
ENTRY = re.compile(
    r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*): ((?:.*\n?)(?: {8}.*\n?)*)", re.M
)


def public():
    """Returns public classes, their own public methods, and functions, by name."""
    found = {}
    for part in PARTS:
        for name in part.__all__:
            one = getattr(part, name)
            if inspect.ismodule(one):
                continue
            found[name] = one
            for method, function in vars(one).items() if inspect.isclass(one) else ():
                is_shown = not method.startswith("_") and function.__doc__
                if inspect.isfunction(function) and is_shown:
                    found[f"{name}.{method}"] = function
    return found


PUBLIC = public()


def problems(docstring, signature):
    """Yields a sentence for each fault of a docstring."""
    first, _, rest = docstring.partition("\n")
    if first.split()[0] in NO_FIRST_WORDS:
        yield f"begins with {first.split()[0]}"
    if not first.endswith(".") or (rest and not rest.startswith("\n")):
        yield f"has no sentence as its first line, but {first}"
    args = ARGS.search(docstring)
    for names, text in ENTRY.findall(args[1] if args else ""):
        for name in names.split(", "):
            parameter = signature.parameters.get(name)
            has_default = (
                parameter is not None and parameter.default is not inspect._empty
            )
            if has_default and "Defaults to" not in " ".join(text.split()):
                yield f"does not say what {name} defaults to"


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring(name):
    one = PUBLIC[name]
    docstring = inspect.cleandoc(one.__doc__)
    assert list(problems(docstring, inspect.signature(one))) == []


def functions(name):
    """Yields names and functions: a public function, or a constructor and `call`."""
    one = PUBLIC[name]
    if not inspect.isclass(one):
        yield name, one
        return
    for method in {"__init__", "call"} & vars(one).keys():
        yield f"{name}.{method}", vars(one)[method]


# Without hints: a model's call, and functions of any model.
WITHOUT = {"PerformerLM.call", "check_causal", "check_masks"}


def test_everything_public_has_hints():
    """`make lint` checks the calls in `tests/hints`."""
    found = {}
    for name in PUBLIC:
        found.update({} if "." in name else functions(name))
    assert {"generate", "PerformerAttention.__init__", *WITHOUT} <= found.keys()
    for name in found.keys() - WITHOUT:
        signature = inspect.signature(found[name])
        hints = {x.name: x.annotation for x in signature.parameters.values()}
        hints = {**hints, "return": signature.return_annotation, "self": None}
        missing = [x for x, hint in hints.items() if hint is inspect.Signature.empty]
        assert not missing, name
