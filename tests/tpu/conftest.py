"""Runs the compile gate only in the environment of `make tpu-check`."""

import importlib.util

# The TPU compiler is a large optional package; `make test` does without it.
if importlib.util.find_spec("libtpu") is None:
    collect_ignore_glob = ["test_*.py"]
