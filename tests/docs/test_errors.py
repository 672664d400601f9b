"""`tests/wrong_uses` raises the errors of *Troubleshooting*."""

import re

from docs.pages import ROOT
from tests.test_wrong_uses import ALL

HEADING = re.compile(r"^### `(.+)`$", re.MULTILINE)
OF_KERAS = ["Could not locate class 'PerformerAttention'"]


def test_each_error_of_the_page_is_raised_by_a_test():
    headings = HEADING.findall((ROOT / "docs" / "errors.md").read_text())
    assert len(headings) == len(set(headings)) == 15
    messages = {wrong.wanted for wrong in ALL}
    assert [text for text in headings if text not in messages] == OF_KERAS
