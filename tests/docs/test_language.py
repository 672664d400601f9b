"""Guides are in plain English: banned phrases, numbers in prose, word counts."""

import re

import pytest

from docs.pages import BLOCK, PAGES, ROOT

DOCS = ROOT / "docs"
REFERENCE = {"api", "benchmarks", "compatibility", "versioning"}
GUIDES = [p for p in PAGES if p.parent == DOCS and p.stem not in REFERENCE]
OTHERS = [ROOT / "README.md", *sorted((DOCS / "recipes").glob("*.md"))]
ALL_WORDS, NUMBERS = 14_000, 5

NUMBER = r"\d(?:[\d.,]*\d)?"
BANNED = {  # a pattern and its replacement
    r"\bboth (sides|directions)\b": "bidirectional",
    r"\bwindows? alone\b": "local attention",
    r"\*none\*|\b(and|beside|than|to|with) none\b": "no attention",
    r"\| none (?=\|[^|]*\d)": "no attention",
    r"\b(that|those) of\b": "the noun again",
    r"\bthose which\b|\bwhat is\b|\bwhoever\b": "a noun",
    r"\bheads of \d": "head size",
    rf"{NUMBER} (\w+ )?(for {NUMBER}(?=[.,;:)]|$)|instead of {NUMBER})": "down from",
    r"\bit (is|was) [^.:;,]{1,60} that\b": "subject, verb, object",
}


def without_code(text):
    """Returns the prose of a page, with inline code, and links without targets."""
    text = BLOCK.sub("", text)
    text = re.sub(r"^ {4,}.*$", "", text, flags=re.MULTILINE)  # indented code
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def sentences(text):
    """Returns a page without code as one line, as phrases may cross line breaks."""
    text = re.sub(r"`[^`]*`", "`code`", without_code(text))
    return re.sub(r"\s+", " ", text)


def banned(text):
    """Returns the banned phrases of a page, with replacements."""
    return [
        f"{match[0]}: {better}"
        for pattern, better in BANNED.items()
        for match in re.finditer(pattern, sentences(text), re.IGNORECASE)
    ]


def numbers(text):
    """Returns numbers in prose: not in code, tables, headings or versions."""
    text = re.sub(r"^(\||#|\d+\. ).*$", "", without_code(text), flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(r"\b(arXiv|Keras|Python|TensorFlow)\s+[\d.]*\d", "", text)
    return re.findall(rf"(?<![\w.,^/-]){NUMBER}", text)


def count_words(text):
    """Counts words of a page as for the README: with tables, without code blocks."""
    return len(BLOCK.sub("", text).replace("|", "").split())


def page_ids(page):
    return page.stem


@pytest.mark.parametrize("page", [*GUIDES, *OTHERS], ids=page_ids)
def test_no_banned_phrases(page):
    assert banned(page.read_text()) == []


@pytest.mark.parametrize("page", GUIDES, ids=page_ids)
def test_numbers_stand_in_tables(page):
    found = numbers(page.read_text())
    assert len(found) <= NUMBERS, found


def test_all_guides_together_are_short():
    words = {page.stem: count_words(page.read_text()) for page in GUIDES}
    assert sum(words.values()) <= ALL_WORDS, words
