"""Fixtures for the environment of `make litert-check`, which has LiteRT."""

import importlib.util

# These tests take minutes, and depend on TensorFlow's release.
if importlib.util.find_spec("ai_edge_litert") is None:
    collect_ignore_glob = ["*.py"]
