"""Python blocks of the README and of each page of the documentation run."""

import contextlib
import io

import keras
import pytest

from docs.pages import PAGES, blocks, promised_output


def run(text, name):
    """Runs the blocks of a page in one namespace, and checks what they print."""
    namespace = {"__name__": "__main__"}
    for code in blocks(text, "python"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), namespace)
        lines = iter(printed.getvalue().splitlines())  # loops print further lines
        missing = [line for line in promised_output(code) if line not in lines]
        assert missing == [], printed.getvalue()


def marked(page):
    # it compiles a training step in chunks, which takes seconds
    is_slow = page.stem == "very_long"
    return pytest.param(page, id=page.stem, marks=[pytest.mark.slow] * is_slow)


@pytest.mark.slow
@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    registered = dict(keras.saving.get_custom_objects())
    try:
        run(page.read_text(), str(page))
    finally:
        keras.saving.get_custom_objects().clear()
        keras.saving.get_custom_objects().update(registered)
