"""Time and memory of layers and models of this package on a GPU."""
