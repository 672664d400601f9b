"""Draws all pictures of the documentation, or the named ones.

python -m docs.pictures replace masks
"""

import importlib
import pathlib
import sys

from docs.pictures import style

FOLDER = pathlib.Path(__file__).parent
SHARED = {"__init__", "__main__", "style", "tables"}

for name in sys.argv[1:] or sorted({x.stem for x in FOLDER.glob("*.py")} - SHARED):
    figure = importlib.import_module(f"docs.pictures.{name}").draw()
    style.save(figure, FOLDER / f"{name}.png")
