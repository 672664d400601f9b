"""The Markdown files for users, and the Python code in them."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text, language):
    """Yields the code blocks of a language.

    Empty lines replace the text before each block, so that errors name lines of a page.
    """
    for match in BLOCK.finditer(text):
        if match[1] == language:
            yield "\n" * (text[: match.start(2)].count("\n")) + match[2]


def promised_output(code):
    """Returns the outputs that comments after `print(...)` promise."""
    return re.findall(r"^ *print\(.*\)  # (.+)$", code, re.MULTILINE)


def with_sizes(code, sizes, name):
    """Compiles code with other values for the constants at its top.

    Args:
        code: str, Python with assignments such as `LENGTH = 8192`.
        sizes: dict from such names to their values.
        name: str, name of the file in errors.
    """
    tree, waiting = ast.parse(code), dict(sizes)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in waiting:
            value = waiting.pop(ast.unparse(node.targets[0]))
            node.value = ast.copy_location(ast.Constant(value), node.value)
    if waiting:
        raise ValueError(f"{name} assigns no {', '.join(waiting)}.")
    return compile(tree, name, "exec")
