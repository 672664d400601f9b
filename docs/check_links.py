"""Checks built pages: links have targets, files are local, the reference is complete.

The search must find each public class with the signatures of its constructor and its
call, list `PerformerAttention` first, and work without a server.

python docs/check_links.py site
"""

import ast
import copy
import html.parser
import json
import pathlib
import re
import sys
import urllib.parse

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_performer"


class Page(html.parser.HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loads = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        if tag == "a":
            self.links.append(attributes.get("href"))
        elif tag in ("img", "script", "iframe", "source"):
            self.loads.append(attributes.get("src"))
        elif tag == "link" and attributes.get("rel") != "canonical":
            self.loads.append(attributes.get("href"))


def problems(site):
    """Yields a sentence for each broken link in the folder `site`."""
    site = pathlib.Path(site).resolve()
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for link in filter(None, page.loads):
            if urllib.parse.urlsplit(link).netloc:
                yield f"{name} loads {link}, which needs a network"
        for link in filter(None, page.links + page.loads):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            file = path
            if parts.path:
                file = (path.parent / urllib.parse.unquote(parts.path)).resolve()
                file = file / "index.html" if file.is_dir() else file
            anchor = urllib.parse.unquote(parts.fragment)
            if not file.is_file():
                yield f"{name} links to {link}, which is not there"
            elif anchor and file in pages and anchor not in pages[file].anchors:
                yield f"{name} links to {link}, which has no such anchor"


def missing_names(site, package=PACKAGE):
    """Yields a sentence for each public name that the reference lacks."""
    pages = (pathlib.Path(site) / "reference").glob("*.html")
    anchors = filter(None, set().union(*(Page(page).anchors for page in pages)))
    documented = {anchor.rsplit(".", 1)[-1] for anchor in anchors}
    for part, name in public_names(package):
        if name not in documented:
            yield f"the reference lacks {name} of {part}"


def search_problems(site, package=PACKAGE):
    """Yields a sentence for each entry that the search lacks, or must not have."""
    folder = pathlib.Path(site) / "search"
    index = json.loads((folder / "search_index.json").read_text())
    entries = {
        doc["location"].split("#")[1]: without_tags(doc["text"])
        for doc in index["docs"]
        if re.match(r"reference/\w+\.html#keras_performer\.", doc["location"])
    }
    if not (folder / "search_index.js").is_file():
        yield "the search needs a server: search_index.js is not there"
    for doc in index["docs"]:
        if re.match(r"repository/(benchmarks/|.*\.\w+\.html)", doc["location"]):
            yield f"the search has {doc['location']}: measurements or source code"
    classes, values = defined_classes(package), constants(package)
    if not next(iter(entries), "").endswith(".PerformerAttention"):
        yield "the reference does not begin with PerformerAttention"
    for name in sorted({name for _, name in public_names(package)} & set(classes)):
        for method, suffix in ("__init__", ""), ("call", ".call"):
            function = inherited(classes, name, method)
            if function is None:
                continue
            wanted = signature(function, "call" if suffix else name, values)
            found = (t for a, t in entries.items() if a.endswith(f".{name}{suffix}"))
            if not next(found, "").startswith(wanted):
                yield f"the search does not find {name}{suffix}: {wanted}"


def public_names(package):
    """Yields pairs of a part of the package and a name in its `__all__`."""
    parts = ["layers", "feature_maps", "ops", "testing", "zoo"]  # headings, not entries
    for part in [package, *(package / part for part in parts)]:
        for node in ast.parse((part / "__init__.py").read_text()).body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
                for name in sorted(set(ast.literal_eval(node.value)) - set(parts)):
                    yield part.name, name


def defined_classes(package):
    """The class definitions of the package by their names."""
    return {
        node.name: node
        for path in sorted(package.rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }


def inherited(classes, name, method):
    """Finds a method in a class, or in its first base that defines the method."""
    if name not in classes:
        return None
    for node in classes[name].body:
        if isinstance(node, ast.FunctionDef) and node.name == method:
            return joined(classes, name, node) if node.args.vararg else node
    return of_a_base(classes, name, method)


def of_a_base(classes, name, method):
    """Finds a method in the first base that defines it."""
    bases = (ast.unparse(base).split(".")[-1] for base in classes[name].bases)
    found = (inherited(classes, base, method) for base in bases)
    return next(filter(None, found), None)


def joined(classes, name, node):
    """Replaces the `*args` of a definition by the arguments of the base."""
    base = copy.deepcopy(of_a_base(classes, name, node.name))
    own = {argument.arg for argument in node.args.kwonlyargs}
    arguments = base.args
    kept = [
        (argument, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults)
        if argument.arg not in own
    ]
    kept += zip(node.args.kwonlyargs, node.args.kw_defaults)
    arguments.kwonlyargs, arguments.kw_defaults = map(list, zip(*kept))
    return base


def constants(package):
    """Returns the values of module constants by their names."""
    return {
        ast.unparse(node.targets[0]): node.value
        for path in sorted(package.rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
    }


def signature(function, name, values):
    """The signature as on the page, without spaces: `PerformerBlock(num_heads,`."""
    arguments = copy.deepcopy(function.args)
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    arguments.kw_defaults = [
        values.get(default.id, default) if isinstance(default, ast.Name) else default
        for default in arguments.kw_defaults
    ]
    del arguments.args[0]  # self
    return without_spaces(f"{name}({ast.unparse(arguments)})")


def without_tags(text):
    return without_spaces(html.unescape(re.sub("<[^>]+>", "", text)))


def without_spaces(text):
    return re.sub(r"\s+|,\s*(?=\))", "", text).replace("'", '"')


if __name__ == "__main__":
    checks = problems, missing_names, search_problems
    found = [sentence for check in checks for sentence in check(sys.argv[1])]
    print("\n".join(found) or "Every link leads somewhere, every name is there.")
    sys.exit(bool(found))
