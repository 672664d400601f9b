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


@pytest.mark.parametrize(
    "text",
    [
        "Attention to both\nsides is slower.",
        "The window alone learns it.",
        "Compare it with the exact layer and with none.",
        "| none | 2.867 |",
        "The cost is that of exact attention.",
        "What is saved loads.",
        "It reaches 2.373 bits for 2.394.",
        "64 instead of 1,024",
        "It is the window that helps.",
    ],
)
def test_a_banned_phrase_is_noticed(text):
    assert banned(text)
    assert not banned(f"```python\n{text}\n```\n")


def test_what_may_be_written():
    good = "The layer is bidirectional. Use `that of` never. None of it costs memory."
    numbers = "2.373 bits, down from 2.394, in 48 ms for 16 tokens."
    assert banned(f"{good} {numbers}\n\n| masks | none |") == []


def test_numbers_and_words_are_counted():
    text = (
        "# 1\n\n1. 3 items in a list\n\nFrom 1,024 on, 2.5 ms, Keras 3.10, float32, "
        "`x=4`, [5](#5).\n\n| 6 |\n\n```python\n7\n```\n"
    )
    assert numbers(text) == ["1,024", "2.5", "5"]
    assert count_words("# Two words\n\n| a | b |\n\n```python\nx = 1\n```\n") == 5
