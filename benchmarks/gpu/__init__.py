"""Layers of this package on a GPU: TensorFlow lowers them, XLA in JAX runs them."""
