"""Example scripts: `python -m examples.quickstart`, see README.md."""
