"""Recipes run at small size, and their models learn; other pages run as they are."""

import contextlib
import io

import keras
import pytest
import tensorflow as tf

from docs.pages import PAGES, ROOT, blocks, promised_output, with_sizes

FOLDER = ROOT / "docs" / "recipes"
LANGUAGE_MODEL = {"LENGTH": 80, "LAYERS": 1, "WIDTH": 32}
SIZES = {
    "document_retrieval": {
        "LENGTH": 80,
        "QUESTION": 40,
        "EXAMPLES": 8,
        "EPOCHS": 4,
    },
    "language_model": {**LANGUAGE_MODEL, "STEPS": 10, "WARMUP": 2},
    "resume_training": {**LANGUAGE_MODEL, "EXAMPLES": 16, "EVERY": 2},
    "sequence_to_sequence": {
        "LENGTH": 40,
        "WIDTH": 16,
        "EXAMPLES": 64,
        "EPOCHS": 2,
    },
    "serve": {**LANGUAGE_MODEL, "NEW": 8},
    "several_gpus": {**LANGUAGE_MODEL, "WIDTH": 64, "EXAMPLES": 64},
    "text_classifier": {"LENGTH": 80, "EXAMPLES": 8, "EPOCHS": 2},
    "time_series": {"LENGTH": 66, "EXAMPLES": 8, "EPOCHS": 3},
    "vision_transformer": {"IMAGE": 24, "EXAMPLES": 8, "EPOCHS": 3},
}
# Tracing a bidirectional window takes longer than these few steps.
EAGER = {"document_retrieval", "text_classifier", "vision_transformer"}
NEEDS_KERAS_HUB = "convert_bert"  # tests/keras_hub runs it


def code_of(name, part=0):
    """Returns the code of a recipe; only the recipe for KerasHub has a second part."""
    parts = [*blocks((FOLDER / f"{name}.md").read_text(), "python")]
    assert len(parts) == 1 + (name == NEEDS_KERAS_HUB)
    return parts[part]


def run(code, sizes, name, namespace=None):
    """Runs code at these sizes, checks its output, and returns its names."""
    namespace, printed = namespace or {"__name__": "__main__"}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(with_sizes(code, sizes, name), namespace)
    lines = iter(printed.getvalue().splitlines())  # loops print further lines
    missing = [line for line in promised_output(code) if line not in lines]
    assert missing == [], printed.getvalue()
    return namespace


@pytest.fixture
def clean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)
    tf.config.run_functions_eagerly(False)


# In eager mode, TensorFlow warns that functions of data sets remain graphs.
@pytest.mark.filterwarnings("ignore:Even though the .tf.config:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_recipe(name, clean):
    tf.config.run_functions_eagerly(name in EAGER)
    names = run(code_of(name), SIZES[name], f"{name}.md")
    if "history" in names:
        losses = names["history"].history["loss"]
        if len(losses) > 1:
            assert losses[-1] < losses[0]


def test_every_recipe_is_run_and_is_short():
    names = {path.stem for path in FOLDER.glob("*.md")}
    assert names == {*SIZES, NEEDS_KERAS_HUB}
    lines = {
        name: sum(bool(line.strip()) for line in code_of(name).splitlines())
        for name in names
    }
    assert {name: n for name, n in lines.items() if not 20 <= n <= 40} == {}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_in_one_namespace(page, clean):
    registered = dict(keras.saving.get_custom_objects())
    namespace = None
    try:
        for code in blocks(page.read_text(), "python"):
            namespace = run(code, {}, str(page), namespace)
    finally:
        keras.saving.get_custom_objects().clear()
        keras.saving.get_custom_objects().update(registered)
