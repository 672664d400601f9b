"""What a symbolic call of an attention layer returns."""

import inspect

import keras

from keras_performer.layers.keras_privates import in_symbolic_scope
from keras_performer.layers.layer_config import built_copy


def output_spec(layer, *args, **kwargs):
    """Shapes and dtypes of what `call` returns, which is traced: it has its errors.

    A layer that is not built stays so. Where a mechanism has an `outline`, a function
    of the arguments of `attend` whose results have the same shapes and dtypes in a
    smaller graph, `attention_of` takes that.

    Args:
        layer: an `AttentionLayer`.
        *args, **kwargs: arguments of its `call`, with `keras.KerasTensor` for tensors.
    """
    if not layer.built:
        given = inspect.signature(layer.call).bind(*args, **kwargs).arguments
        inputs = [given.get(name) for name in ("query", "value", "key")]
        layer = built_copy(layer, [None if x is None else x.shape for x in inputs])
    return keras.Operation.compute_output_spec(layer, *args, **kwargs)


def attention_of(layer):
    """The `attend` of a layer, or its `outline` where Keras asks for shapes only.

    These are symbolic calls, and the trace of a whole model before it trains under a
    `tf.distribute` strategy.
    """
    defined = (vars(kind) for kind in type(layer).__mro__)
    # a subclass may define an `attend` of its own, which the outline is not that of
    has_outline = "outline" in next(names for names in defined if "attend" in names)
    return layer.outline if has_outline and in_symbolic_scope() else layer.attend
