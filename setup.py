"""The text that package indexes show; all else about the package is in setup.cfg.

It is README.md without what works only beside it: links to files of the repository
become their text, and pictures go, with their captions in italics.
"""

import pathlib
import re

# A target that is neither a page of the web nor a place on the same page.
_TO_A_FILE = r"\((?!https?://|#)[^)\s]*\)"


def description_for_indexes(markdown):
    """Returns Markdown without pictures and links that lead to files."""
    picture, caption = r"!\[[^\]]*\]" + _TO_A_FILE, r"(\n\n\*[^*]+\*\n)?"
    without_pictures = re.sub(picture + caption, "", markdown)
    plain = re.sub(r"\[([^\]]*)\]" + _TO_A_FILE, r"\1", without_pictures)
    return re.sub(r"\n{3,}", "\n\n", plain)


if __name__ == "__main__":  # not where a test reads the function above
    import setuptools

    readme = pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    setuptools.setup(long_description=description_for_indexes(readme))
