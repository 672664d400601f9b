"""Fixtures for the environment of `make litert-check`, which has LiteRT."""

import importlib.util

# They take minutes, and what they run changes with TensorFlow's releases.
if importlib.util.find_spec("ai_edge_litert") is None:
    collect_ignore_glob = ["*.py"]
