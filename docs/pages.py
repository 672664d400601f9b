"""The Markdown files that strangers read, and the Python in them."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text, language):
    """The blocks of a language, each behind as many empty lines as come before it.

    So errors name the line of the page.
    """
    for match in BLOCK.finditer(text):
        if match[1] == language:
            yield "\n" * (text[: match.start(2)].count("\n")) + match[2]


def promised_output(code):
    """What the comments behind `print(...)` say that it prints."""
    return re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE)
