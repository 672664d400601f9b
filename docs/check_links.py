"""Checks built pages: links lead somewhere, public names are there, all is local.

python docs/check_links.py site
"""

import ast
import html.parser
import pathlib
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
    """Sentences that say which links of the folder `site` are broken."""
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
    """Sentences that say which public names the page of the API lacks."""
    anchors = filter(None, Page(pathlib.Path(site) / "api.html").anchors)
    documented = {anchor.rsplit(".", 1)[-1] for anchor in anchors}
    parts = {"layers", "feature_maps", "ops", "testing"}  # headings, not entries
    for file in [package, *(package / part for part in sorted(parts))]:
        for node in ast.parse((file / "__init__.py").read_text()).body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "__all__"
            ):
                for name in set(ast.literal_eval(node.value)) - documented - parts:
                    yield f"api.html lacks {name} of {file.name}"


if __name__ == "__main__":
    found = [*problems(sys.argv[1]), *missing_names(sys.argv[1])]
    print("\n".join(found) or "Every link leads somewhere.")
    sys.exit(bool(found))
