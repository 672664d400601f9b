"""Targets of references in the README and the documentation exist."""

import importlib.util
import json
import pathlib
import re

import pytest
from PIL import Image

from docs import check_links
from docs.pages import BLOCK, PAGES, ROOT

DOCS_FOLDERS = ("docs/notebooks", "docs/recipes", "docs/reference")
DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
for folder in ("benchmarks", "examples", "tpu_configs", *DOCS_FOLDERS):
    DOCUMENTS += sorted((ROOT / folder).rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[([^\]]+)\]\(([^)]+)\)")


def ids(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_lead_to_files_and_headings(document):
    text = BLOCK.sub("", document.read_text())
    broken = [
        link for link in LINK.findall(text) if not leads_somewhere(document, link)
    ]
    assert broken == []


def leads_somewhere(document, link):
    if re.match(r"https?://|mailto:", link):
        return True
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if anchor and target.suffix == ".md":
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
        words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
        return anchor in {heading.strip().replace(" ", "-") for heading in words}
    return target.exists()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_pictures_are_drawn_by_scripts(page):
    text = page.read_text()
    pictures = PICTURE.findall(text)
    assert len(pictures) == text.count("![")
    for description, link in pictures:
        assert len(description) > 20
        picture = (page.parent / link).resolve()
        with Image.open(picture) as image:
            assert image.width >= 1000  # sharp on a page of 640 points
        if picture.parent.name == "pictures":
            assert picture.stat().st_size < 100_000
            assert picture.with_suffix(".py").exists()
        else:
            assert picture.parent == ROOT / "benchmarks"  # which `make bench` draws


def test_every_drawn_picture_is_on_a_page():
    drawn = {path.name for path in (ROOT / "docs" / "pictures").glob("*.png")}
    shown = {
        pathlib.PurePath(link).name
        for page in PAGES
        for _, link in PICTURE.findall(page.read_text())
    }
    assert drawn - shown == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_commands_exist(page):
    text = page.read_text()
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"(?:`|^)make ([\w.-]+)", text, re.MULTILINE)
    assert [c for c in commands if not re.search(rf"^{c}:", makefile, re.M)] == []
    modules = re.findall(r"python -m ([\w.]+)", text)
    assert [m for m in modules if importlib.util.find_spec(m) is None] == []


def test_readme_is_one_page():
    text = (ROOT / "README.md").read_text()
    lines = text.splitlines()
    assert lines.index("```python") < 30
    assert len(lines) <= 200
    assert len(re.sub(r"```.*?```|\|", "", text, flags=re.DOTALL).split()) <= 1000


SITE = {
    "index.html": '<h1 id="top">A</h1><a href="b.html#there">b</a><img src="a.png">',
    "b.html": '<h2 id="there">B</h2><a href="./#top">back</a>',
    "a.png": "",
}


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<p></p>", None),
        ('<a href="none.html">x</a>', "not there"),
        ('<a href="b.html#nowhere">x</a>', "no such anchor"),
        ('<img src="none.png">', "not there"),
        ('<script src="https://example.org/x.js"></script>', "needs a network"),
        ('<a href="https://example.org/">x</a>', None),
    ],
)
def test_check_of_built_pages(tmp_path, page, reason):
    for name, text in {**SITE, "page.html": page}.items():
        (tmp_path / name).write_text(text)
    problems = list(check_links.problems(tmp_path))
    assert len(problems) == (reason is not None)
    assert reason is None or reason in problems[0]


PLACE = "reference/a.html#keras_performer.PerformerAttention"
CLASS = """
class PerformerAttention:
    def __init__(self, size: int, *, window="none", **kwargs): ...
    def call(self, x, mask: int | None = None): ...
"""


@pytest.mark.parametrize(
    ("location", "text", "reason"),
    [
        ("repository/examples/index.html", "Examples", None),
        ("repository/examples/text.py.html", "Code", "source code"),
        (PLACE, "PerformerAttention(size)", 'PerformerAttention(size,*,window="none"'),
        (f"{PLACE}.call", "call(x)", "PerformerAttention.call: call(x,mask=None)"),
    ],
)
def test_check_of_the_reference_and_its_search(tmp_path, location, text, reason):
    package = tmp_path / "package"
    for part in ("", "layers", "feature_maps", "ops", "testing", "zoo"):
        (package / part).mkdir()
        names = ["PerformerAttention", "other"] if part == "layers" else []
        (package / part / "__init__.py").write_text(f"__all__ = {names}\n")
    (package / "layers" / "performer.py").write_text(CLASS)
    signature = "<pre>PerformerAttention(\n  size, *, window=&#x27;none&#x27;, **kwargs"
    entries = {PLACE: f"{signature}\n)</pre>", f"{PLACE}.call": "call(x, mask=None)"}
    docs = [{"location": a, "text": b} for a, b in {**entries, location: text}.items()]
    for folder in ("search", "reference"):
        (tmp_path / folder).mkdir()
    (tmp_path / "search" / "search_index.js").touch()
    (tmp_path / "search" / "search_index.json").write_text(json.dumps({"docs": docs}))
    (tmp_path / "reference" / "a.html").write_text('<h3 id="PerformerAttention"></h3>')
    problems = list(check_links.search_problems(tmp_path, package))
    assert len(problems) == (reason is not None)
    assert reason is None or reason in problems[0]
    lacking = list(check_links.missing_names(tmp_path, package))
    assert lacking == ["the reference lacks other of layers"]
