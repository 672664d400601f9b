"""The Markdown files that strangers read, and the Python in them."""

import ast
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
    """Output that the comments behind `print(...)` promise."""
    return re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE)


def with_sizes(code, sizes, name):
    """Compiled code whose constants at the top have other values.

    Args:
        code: str, Python with assignments such as `LENGTH = 8192`.
        sizes: dict from such names to their values.
        name: str, the file that errors name.
    """
    tree, waiting = ast.parse(code), dict(sizes)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in waiting:
            value = waiting.pop(ast.unparse(node.targets[0]))
            node.value = ast.copy_location(ast.Constant(value), node.value)
    if waiting:
        raise ValueError(f"{name} assigns no {', '.join(waiting)}.")
    return compile(tree, name, "exec")
