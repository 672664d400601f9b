"""Reads what is Keras' own in our docstrings, which the pages would garble.

A griffe extension (griffe reads the source for mkdocstrings): examples become code,
`Call arguments` a list; types are those that the docstrings say in words. A `call`
without a docstring gets one, as only what has one is shown.
"""

import re

import griffe

SECTION = re.compile(
    r"^(Call arguments|Returns|Reference):\n((?: {4}.*\n?|\n(?= {4}))+)", re.MULTILINE
)
EXAMPLE = re.compile(r"^((?:>>> |\.\.\. ).*\n?(?:^(?!$).*\n?)*)", re.MULTILINE)
CALL = "Called as `layer(...)`; the class describes the arguments."
ITEM = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites docstrings as Markdown where griffe knows no section for them."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
        if obj.is_function:
            for parameter in obj.parameters:
                parameter.annotation = None
            if obj.name == "call" and not obj.docstring:
                obj.docstring = griffe.Docstring(CALL, parent=obj)


def as_markdown(text):
    text = SECTION.sub(_section, text + "\n")
    text = re.sub(r"^Example:$", "**Example:**", text, flags=re.MULTILINE)
    return EXAMPLE.sub(r"```pycon\n\1```\n", text).rstrip()


def _section(match):
    body = re.sub(r"^ {4}", "", match[2], flags=re.MULTILINE)
    if match[1] == "Call arguments":
        names = r"- **`\1`** – "
        body = "\n" + ITEM.sub(names, body)
    return f"**{match[1]}:**\n\n{body}\n"
