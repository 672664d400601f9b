"""Converts the Keras sections of our docstrings, which the pages would garble.

A griffe extension; griffe reads the source for mkdocstrings. Examples become code, and
`Call arguments` a list. Pages show no annotations, because docstrings name the types. A
`call` without a docstring gets one, because pages show only members with one. A
constructor that takes `*args` for its base shows the arguments of both, as
`inspect.signature` does.
"""

import copy
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

    def on_package(self, *, pkg, **kwargs):
        for found in classes(pkg):
            if "__init__" in found.members:
                show_constants(found.members["__init__"])
        for found in classes(pkg):
            join_constructors(found)


def classes(module):
    """Yields the classes that a module and its submodules define."""
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_class:
            yield member
        elif member.is_module:
            yield from classes(member)


def show_constants(function):
    """Replaces module constants in defaults, such as `BIASES`, by their values."""
    for parameter in function.parameters:
        constant = function.module.members.get(str(parameter.default))
        if constant is not None and not constant.is_alias and constant.is_attribute:
            parameter.default = constant.value


def join_constructors(cls):
    """Replaces `*args` by the arguments of the base."""
    init = cls.members.get("__init__")
    kinds = griffe.ParameterKind
    if init is None or all(p.kind is not kinds.var_positional for p in init.parameters):
        return
    base = next(base for base in cls.mro() if "__init__" in base.members)
    join_constructors(base)
    own = {p.name: p for p in init.parameters if p.kind is kinds.keyword_only}
    joined, by_name = [], False
    for parameter in base.members["__init__"].parameters:
        by_name = by_name or parameter.name in own
        if parameter.kind is kinds.var_keyword:
            joined += [*own.values(), parameter]
        elif parameter.name not in own:
            parameter = copy.copy(parameter)
            if by_name:
                parameter.kind = kinds.keyword_only
            joined.append(parameter)
    init.parameters = griffe.Parameters(*joined)


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
