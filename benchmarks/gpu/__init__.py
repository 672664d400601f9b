"""Layers of this package on a GPU, by JAX: TensorFlow lowers them, XLA runs them."""
