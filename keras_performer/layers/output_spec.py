"""What a symbolic call of an attention layer returns."""

import contextlib
import inspect

import keras

from keras_performer.layers.layer_config import built_copy


def output_spec(layer, *args, **kwargs):
    """Shapes and dtypes of what `call` returns, which is traced: it has its errors.

    A layer that is not built stays so. Where a mechanism has an `outline`, a function
    of the arguments of `attend` whose results have the same shapes and dtypes in a
    smaller graph, that is what is traced of it.

    Args:
        layer: an `AttentionLayer`.
        *args, **kwargs: arguments of its `call`, with `keras.KerasTensor` for tensors.
    """
    if not layer.built:
        given = inspect.signature(layer.call).bind(*args, **kwargs).arguments
        inputs = [given.get(name) for name in ("query", "value", "key")]
        layer = built_copy(layer, [None if x is None else x.shape for x in inputs])
    with _outlined(layer):
        return keras.Operation.compute_output_spec(layer, *args, **kwargs)


@contextlib.contextmanager
def _outlined(layer):
    """Puts the outline of a layer, if it has one, in the place of `attend`."""
    defined = (vars(kind) for kind in type(layer).__mro__)
    # a subclass may define an `attend` of its own, which the outline is not that of
    if "outline" not in next(names for names in defined if "attend" in names):
        yield
        return
    vars(layer)["attend"] = layer.outline
    try:
        yield
    finally:
        del vars(layer)["attend"]
