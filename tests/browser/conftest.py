"""These tests run in the environment of `make browser-check`, and need a Chromium."""

import importlib.util

# Playwright is of no use without a browser; `make test` does without both.
if importlib.util.find_spec("playwright") is None:
    collect_ignore_glob = ["*.py"]
