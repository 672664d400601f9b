"""Recipes and notebooks run at small size; other pages run as they are."""

import contextlib
import io
import json
import re

import keras
import matplotlib.pyplot as plt
import pytest
import tensorflow as tf

from docs.build_notebooks import page as page_of
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
            sizes = {"ROWS": 8} if "\nROWS = " in code else {}
            namespace = run(code, sizes, str(page), namespace)
    finally:
        keras.saving.get_custom_objects().clear()
        keras.saving.get_custom_objects().update(registered)


# -- Notebooks, which have a page and an .ipynb file.

NOTEBOOKS = ROOT / "docs" / "notebooks"
SIZES_OF_NOTEBOOKS = {
    "convert": {"LENGTH": 40, "STEPS": 2, "WIDTH": 16, "WINDOW": 8, "TEST": 8}
    | {"TRANSFER": 1},
    "documents": {"SHORT": 80, "LONG": 100, "STEPS": 3, "WIDTH": 16, "TEST": 2},
    "language_model": {"LENGTH": 80, "STEPS": 10, "WIDTH": 32, "TEST": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES_OF_NOTEBOOKS)
def test_notebook(name, clean, monkeypatch):
    plt.switch_backend("agg")
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    names = run(
        (NOTEBOOKS / f"{name}.py").read_text(), SIZES_OF_NOTEBOOKS[name], f"{name}.py"
    )
    plt.close("all")
    if name == "convert":
        bits = names["table"]
        assert set(bits) > {"exact attention", "converted", "local attention"}
        assert all(0 < value < 9 for value in bits.values())
    if name == "documents":
        assert len(shown) == 1
        weights = names["scores"][0, :, 0].numpy()
        assert weights.sum(-1) == pytest.approx(1, abs=1e-4)


def test_all_notebooks_are_run():
    assert {path.stem for path in NOTEBOOKS.glob("*.py")} == set(SIZES_OF_NOTEBOOKS)


@pytest.mark.parametrize("name", SIZES_OF_NOTEBOOKS)
def test_page_and_notebook_are_those_of_the_script(name):
    cells = cells_of((NOTEBOOKS / f"{name}.py").read_text())
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert found == cells, "run make notebooks"
    text, pictures = page_of(name, notebook)
    assert (NOTEBOOKS / f"{name}.md").read_text() == text, "run make notebooks"
    drawn = {path.name: path.read_bytes() for path in NOTEBOOKS.glob(f"{name}_*.png")}
    assert drawn == pictures, "run make notebooks"


@pytest.mark.parametrize("name", SIZES_OF_NOTEBOOKS)
def test_a_notebook_keeps_what_its_cells_print(name):
    for cell in json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())["cells"]:
        source = "".join(cell["source"])
        outputs = cell.get("outputs", [])
        printed = "".join("".join(output.get("text", "")) for output in outputs)
        if re.search(r"^ *print\(", source, re.MULTILINE):
            assert printed, source
        missing = set(promised_output(source)) - set(printed.splitlines())
        assert missing == set(), printed


def cells_of(script):
    """Returns kinds and texts of the cells of a script in jupytext's percent format."""
    cells = []
    for part in script.split("# %%")[1:]:
        mark, _, text = part.partition("\n")
        kind = "markdown" if mark.strip() == "[markdown]" else "code"
        text = text.strip()
        cells.append((kind, text.strip('"').strip() if kind == "markdown" else text))
    return cells
