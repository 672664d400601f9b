"""Makes the README the home page of the site, and linked files pages of the site.

Pages link to files of the repository, so that the links work there too. A file outside
of docs/ that a page links to becomes a page of the site, under repository/, so that no
link needs an address that may not exist. The search leaves out measurements and source
code, and lists recipes and the attention layers of the reference first.
"""

import os
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```\n?)", re.MULTILINE | re.DOTALL)
PICTURES = {".png", ".svg"}
# Factors of the score of a page in the search, by the start of its path.
BOOSTS = {"recipes/": 3, "reference/attention": 3, "notebooks/": 2, "repository/": 0.3}
LANGUAGES = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".yml": "yaml"}


def on_files(files, config):
    """Adds the README and all files that pages link to, also through other files."""
    waiting = ["README.md"]
    for file in files.documentation_pages():
        waiting += linked_files(f"docs/{file.src_uri}")
    added = set()
    while waiting:
        path = waiting.pop()
        if path.startswith("docs/") or path in added:
            continue
        added.add(path)
        files.append(published(path, config))
        if path.endswith(".md"):
            waiting += linked_files(path)
    return files


def on_page_markdown(markdown, page, config, files):
    """Turns links between files into links between pages."""
    source = getattr(page.file, "repository_path", f"docs/{page.file.src_uri}")
    if source.startswith("benchmarks/") or not source.endswith(".md"):
        page.meta["search"] = {"exclude": True}
    for start, boost in BOOSTS.items():
        if page.file.src_uri.startswith(start):
            page.meta.setdefault("search", {"boost": boost})
    folder = posixpath.dirname(page.file.src_uri) or "."

    def page_link(match):
        path = target(source, match[2])
        if path is None:
            return match[0]
        link = posixpath.relpath(site_path(path), folder)
        return f"{match[1]}{link}{match[3] or ''})"

    return "".join(
        part if part.startswith("```") else LINK.sub(page_link, part)
        for part in FENCE.split(markdown)
    )


def linked_files(source):
    """Files that a Markdown file of the repository links to."""
    text = FENCE.sub("", (ROOT / source).read_text())
    targets = (target(source, match[2]) for match in LINK.finditer(text))
    return [path for path in targets if path is not None]


def target(source, link):
    """Returns the target file of a link, relative to the repository.

    Returns `None` for addresses, and for missing files, about which MkDocs warns.
    """
    if ":" in link:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    return path if (ROOT / path).is_file() and not path.startswith("..") else None


def site_path(path):
    """Path of a file of the repository in the source of the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    suffix = os.path.splitext(path)[1]
    return f"repository/{path}" + ("" if suffix in {".md", *PICTURES} else ".md")


def published(path, config):
    """Turns a file of the repository into a file of the site."""
    source, uri = ROOT / path, site_path(path)
    if source.suffix in PICTURES:
        return File.generated(config, uri, abs_src_path=str(source))
    text = source.read_text()
    if source.suffix != ".md":
        language = LANGUAGES.get(source.suffix, "text")
        text = f"# {path}\n\n```{language}\n{text}\n```\n"
    file = File.generated(config, uri, content=text)
    file.repository_path = path
    return file
