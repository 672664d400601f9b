"""Reads numbers from the Markdown tables of the repository."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def rows(path, first_column):
    """Returns rows, lists of cells, of the first table with this head in a file.

    Args:
        path: str, a Markdown file, relative to the repository.
        first_column: str, the head of the table's first column.
    """
    lines = iter((ROOT / path).read_text().splitlines())
    if not any(line.startswith(f"| {first_column} |") for line in lines):
        raise ValueError(f"{path} has no table that begins with {first_column}.")
    next(lines)  # the line of dashes
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def numbers(cell):
    """The numbers in a cell, as floats."""
    return [float(x.replace(",", "")) for x in re.findall(r"\d[\d,]*\.?\d*", cell)]
