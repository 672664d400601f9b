"""Runs the notebooks of docs/notebooks; writes their .ipynb files and pages.

python -m docs.build_notebooks [NAME ...]

A notebook is a .py file of cells. The .ipynb file and the page keep what the cells
print and draw. Needs the environment of `make notebooks`.
"""

import base64
import io
import json
import pathlib
import sys
import tempfile
import textwrap

from PIL import Image

FOLDER = pathlib.Path(__file__).parent / "notebooks"


def main(names):
    import jupytext
    import nbclient
    import nbformat

    for script in sorted(FOLDER.glob("*.py")):
        if names and script.stem not in names:
            continue
        print(script.stem, flush=True)
        notebook = jupytext.read(script)
        notebook.metadata = {
            "kernelspec": {
                "name": "python3",
                "display_name": "Python 3",
                "language": "python",
            }
        }
        with tempfile.TemporaryDirectory() as folder:  # notebooks save models
            nbclient.NotebookClient(
                notebook,
                timeout=None,
                record_timing=False,
                coalesce_streams=True,
                resources={"metadata": {"path": folder}},
            ).execute()
        for number, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{number}"  # random by default
            if cell.cell_type == "code":
                cell.outputs = [x for x in cell.outputs if x.get("name") != "stderr"]
                for output in cell.outputs:
                    make_picture_small(output.get("data", {}))
        nbformat.write(notebook, script.with_suffix(".ipynb"))
        text, pictures = page(
            script.stem, json.loads(script.with_suffix(".ipynb").read_text())
        )
        script.with_suffix(".md").write_text(text)
        for name, data in pictures.items():
            (FOLDER / name).write_bytes(data)


def make_picture_small(data):
    """Reduces the picture of an output to 128 colours, which are enough for plots."""
    if "image/png" in data:
        drawn = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
        small = io.BytesIO()
        drawn.convert("RGB").quantize(128).save(small, "PNG", optimize=True)
        data["image/png"] = base64.b64encode(small.getvalue()).decode()


def page(name, notebook):
    """Returns a notebook as Markdown, and a dict from picture names to PNG data."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                file = f"{name}_{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![The picture that this cell draws]({file})")
            else:
                text = "".join(data["text/plain"]).rstrip()
                parts.append(textwrap.indent(text, "    ", lambda line: True))
    return "\n\n".join(parts) + "\n", pictures


if __name__ == "__main__":
    main(sys.argv[1:])
