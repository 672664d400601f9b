"""Notebooks run at small size, and make their pages and .ipynb files."""

import json
import re

import matplotlib.pyplot as plt
import pytest

from docs.build_notebooks import page
from docs.pages import ROOT, promised_output
from tests.docs.test_recipes import clean, run  # noqa: F401

FOLDER = ROOT / "docs" / "notebooks"
SIZES = {
    "convert": {"LENGTH": 40, "STEPS": 2, "WIDTH": 16, "WINDOW": 8, "TEST": 8}
    | {"TRANSFER": 1},
    "documents": {"SHORT": 80, "LONG": 100, "STEPS": 3, "WIDTH": 16, "TEST": 2},
    "language_model": {"LENGTH": 80, "STEPS": 10, "WIDTH": 32, "TEST": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_notebook(name, clean, monkeypatch):  # noqa: F811
    plt.switch_backend("agg")
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    names = run((FOLDER / f"{name}.py").read_text(), SIZES[name], f"{name}.py")
    plt.close("all")
    if name == "convert":
        bits = names["table"]
        assert set(bits) > {"exact attention", "converted", "local attention"}
        assert all(0 < value < 9 for value in bits.values())
    if name == "documents":
        assert len(shown) == 1
        weights = names["scores"][0, :, 0].numpy()
        assert weights.sum(-1) == pytest.approx(1, abs=1e-4)


def test_all_are_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_page_and_notebook_are_those_of_the_script(name):
    cells = cells_of((FOLDER / f"{name}.py").read_text())
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert found == cells, "run make notebooks"
    text, pictures = page(name, notebook)
    assert (FOLDER / f"{name}.md").read_text() == text, "run make notebooks"
    drawn = {path.name: path.read_bytes() for path in FOLDER.glob(f"{name}_*.png")}
    assert drawn == pictures, "run make notebooks"


@pytest.mark.parametrize("name", SIZES)
def test_a_notebook_keeps_what_its_cells_print(name):
    for cell in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]:
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
