"""Rules for the source: imports, private names, doctests, depth of calls."""

import ast
import pathlib
import sys

import pytest
import tensorflow as tf

from keras_performer import layers
from tests.mutations import read_mutations

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_performer"
FILES = sorted(PACKAGE.rglob("*.py"))

# Imports that each part of the package may have, besides itself and the standard
# library. They go one way: `ops` does not import Keras, and layers no models.
LAYERS_MAY = {"keras", "numpy", "tensorflow", "keras_performer.ops"}
LAYERS_MAY |= {"keras_performer.feature_maps"}
MAY_IMPORT = {
    "_environment": {"keras"},
    "ops": {"numpy", "tensorflow"},
    "feature_maps": LAYERS_MAY - {"keras_performer.feature_maps"},
    "layers": LAYERS_MAY,
    "callbacks": LAYERS_MAY | {"keras_performer.layers"},
    "recompute": LAYERS_MAY | {"keras_performer.layers"},
    "models": LAYERS_MAY
    | {"keras_performer.layers", "keras_performer.recompute"}
    | {"keras_performer.__version__"},
    "zoo": LAYERS_MAY | {"keras_performer.layers", "keras_performer.recompute"},
    # the function that plots a report imports matplotlib
    "conversion": LAYERS_MAY | {"keras_performer.layers", "matplotlib.figure"},
    "testing": LAYERS_MAY | {"keras_performer.layers", "keras_performer.conversion"},
    "preflight": set(),
    "distribution": {"numpy", "tensorflow", "keras_performer.ops"},
}
# The top file only re-exports.
MAY_IMPORT["__init__"] = {f"keras_performer.{part}" for part in MAY_IMPORT}

# Private parts of Keras, and packages that load a second Keras.
NEVER = {"keras.src", "tensorflow.keras", "tf.keras"}
NEVER |= {"official", "tensorflow_probability", "tf_keras"}


def imported_names(source, path):
    """Yields the dotted names that `source`, the text of `path`, imports."""
    folders = ("keras_performer", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            relative_to = folders[: len(folders) + 1 - node.level] if node.level else ()
            base = [*relative_to, *filter(None, [node.module])]
            yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in NEVER:
            yield ast.unparse(node)


def is_within(name, modules):
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def forbidden_imports(source, path):
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    allowed = MAY_IMPORT[part] | sys.stdlib_module_names | {f"keras_performer.{part}"}
    return [
        name
        for name in imported_names(source, path)
        if is_within(name, NEVER) or not is_within(name, allowed)
    ]


def test_imports_follow_the_arrows():
    forbidden = {
        str(path.relative_to(PACKAGE)): forbidden_imports(path.read_text(), path)
        for path in FILES
    }
    assert {path: names for path, names in forbidden.items() if names} == {}


# The only file that may use private parts of Keras.
PRIVATES = PACKAGE / "layers" / "keras_privates.py"
# Names that look private, but are public methods of named tuples.
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}
# Names that look public, but are not in Keras' documentation.
UNDOCUMENTED = {"get_quantization_mode", "partial_output_shape", "quantized_build"}


def private_attributes(source):
    """Returns the attributes with private names that `source` reads or sets."""
    nodes = ast.walk(ast.parse(source))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    private = {x for x in names if x.startswith("_") and not x.startswith("__")}
    return (private - OF_NAMED_TUPLES) | (names & UNDOCUMENTED)


def own_names(source):
    """Returns names that `source` defines: functions, classes, attributes of `self`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) == "self":
                names.add(node.attr)
        elif isinstance(node, ast.JoinedStr):  # setattr(self, f"_{name}_dense", ...)
            names.update(f"_{x}_dense" for x in ("query", "key", "value"))
    return names


def foreign_privates(sources):
    """Returns private attributes of each source that none of the sources defines."""
    own = set().union(*(own_names(source) for source in sources.values()))
    found = {path: private_attributes(source) - own for path, source in sources.items()}
    return {path: names for path, names in found.items() if names}


def test_privates_of_keras_are_used_in_one_file():
    sources = {path: path.read_text() for path in FILES if path != PRIVATES}
    assert foreign_privates(sources) == {}
    # that file has such attributes, so the check above would find them elsewhere
    assert len(private_attributes(PRIVATES.read_text())) >= 4


# The only file that may use private parts of TensorFlow.
TENSORFLOW_PRIVATES = PACKAGE / "ops" / "compile.py"


def tensorflow_privates(source, path):
    names = imported_names(source, path)
    return [name for name in names if is_within(name, {"tensorflow.python"})]


def test_privates_of_tensorflow_are_imported_in_one_file():
    importing = [path for path in FILES if tensorflow_privates(path.read_text(), path)]
    assert importing == [TENSORFLOW_PRIVATES]


def test_examples_in_docstrings_are_doctests():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    silent = [
        f"{path.relative_to(PACKAGE)}: {getattr(node, 'name', 'module')}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented)
        and "Example" in (text := ast.get_docstring(node) or "")
        and ">>> " not in text
    ]
    assert silent == []


def test_mutations_still_apply():
    """`python -m tests.mutations` runs the tests that must notice them."""
    mutations = list(read_mutations())
    assert len(mutations) >= 50
    for mutation in mutations:
        mutation.apply(PACKAGE.parent)
        for word in mutation.tests.split():
            path, _, function = word.partition("::")
            if path.endswith(".py"):
                text = (PACKAGE.parent / "tests" / path).read_text()
                assert f"def {function}" in text, word


# Largest numbers of files and of calls on the way from `call` to the operation.
BUDGETS = [
    (layers.ExactAttention(2, 8), "exact_attention", 8, 48),
    (layers.PerformerAttention(2, 8), "bidirectional_attention", 12, 61),
    (layers.PerformerAttention(2, 8, causal=True), "causal_attention", 12, 61),
]


@pytest.mark.parametrize(("layer", "operation", "files", "calls"), BUDGETS)
def test_a_call_reaches_its_operation_within_a_budget(layer, operation, files, calls):
    x = tf.zeros((1, 8, 16))
    layer(x)  # builds it
    seen = []

    def note(frame, event, _):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        reached = seen and seen[-1][1] == operation
        if event == "call" and path.startswith(str(PACKAGE)) and not reached:
            seen.append((path, name))

    sys.setprofile(note)
    try:
        layer.call(x)
    finally:
        sys.setprofile(None)
    assert seen[-1][1] == operation
    assert len(seen) <= calls
    assert len({path for path, _ in seen}) <= files
