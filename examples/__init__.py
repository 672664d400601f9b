"""Scripts that a stranger can run: `python -m examples.imagenet64.train`."""
