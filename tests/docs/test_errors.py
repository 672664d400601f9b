"""The tables of *Errors and what they mean* are those of `tests/wrong_uses`."""

import re

from docs.pages import ROOT
from tests.test_wrong_uses import WRONG_USES

ROW = re.compile(r"^\| `([^|]+)` \| [^|]+ \| [^|]+ \|$", re.MULTILINE)


def rows(page):
    """The messages in the tables of a page, by the headings before them."""
    _, *parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    tables = {title: ROW.findall(text) for title, text in zip(parts[::2], parts[1::2])}
    return {title: messages for title, messages in tables.items() if messages}


def test_each_error_of_the_page_is_raised_by_a_test_and_each_of_these_is_there():
    page = (ROOT / "docs" / "errors.md").read_text()
    expected = {
        title: list(dict.fromkeys(wrong.wanted for wrong in group))
        for title, group in WRONG_USES.items()
    }
    assert rows(page) == expected
    assert page.count("\n| `") == sum(map(len, expected.values()))
