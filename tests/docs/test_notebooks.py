"""Notebooks run at small size; their pages and .ipynb files are built from them."""

import json

import matplotlib.pyplot as plt
import pytest

from docs.pages import ROOT
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
    fences = {"code": "```python\n{}\n```", "markdown": "{}"}
    page = "\n\n".join(fences[kind].format(text) for kind, text in cells)
    assert (FOLDER / f"{name}.md").read_text().strip() == page, "run make notebooks"


def cells_of(script):
    """Kinds and texts of the cells of a script in jupytext's percent format."""
    cells = []
    for part in script.split("# %%")[1:]:
        mark, _, text = part.partition("\n")
        kind = "markdown" if mark.strip() == "[markdown]" else "code"
        text = text.strip()
        cells.append((kind, text.strip('"').strip() if kind == "markdown" else text))
    return cells
