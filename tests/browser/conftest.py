"""Fixtures for the environment of `make browser-check`, which needs a Chromium."""

import importlib.util

# Playwright needs a browser; `make test` does without both.
if importlib.util.find_spec("playwright") is None:
    collect_ignore_glob = ["*.py"]
