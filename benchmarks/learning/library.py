"""The sources of the standard library: text that is there wherever Python is."""

import hashlib
import pathlib
import sysconfig

# Folders of what is installed beside the library, and of its tests.
WITHOUT = {"site-packages", "test", "tests", "idle_test"}


def read():
    """Yields the path of each file inside the library, in order, and its bytes."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not WITHOUT & set(name.parts):
            yield name, path.read_bytes()


def digest(name):
    """What decides whether a file is held out: bytes as good as random, of its name."""
    return hashlib.md5(str(name).encode(), usedforsecurity=False).digest()
