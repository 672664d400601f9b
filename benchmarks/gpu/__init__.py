"""Time and memory of layers of this package on a GPU."""
