"""Private parts of Keras that the package uses, and why it needs each.

No other file of the package uses any. The tests of what uses them run with the oldest
and the newest Keras that setup.cfg allows.
"""

import keras
import tensorflow as tf


def implicit_mask(x):
    """Returns the mask that Keras keeps on a tensor, or `None`.

    `keras.layers.Layer` passes an implicit mask to `call` only as an argument named
    after the tensor's, such as `query_mask`. Inside another layer's `call` the mask is
    read from the tensor.
    """
    return getattr(x, "_keras_mask", None)


def set_implicit_mask(x, mask):
    """Puts a mask on a tensor, as Keras' layers and losses with `ignore_class` do.

    `keras.losses.Loss` reads it there, so values computed in chunks must get it again.
    """
    x._keras_mask = mask


def with_mask(x, mask):
    """Returns a copy of x with a mask, as Keras' layers do; x itself for `None`."""
    if mask is not None:
        x = tf.identity(x)
        set_implicit_mask(x, mask)
    return x


def in_symbolic_scope():
    """Returns `True` while Keras traces layers for the shapes of their outputs.

    No public function tells this, but a `keras.SymbolicScope` notes the scope around.
    """
    with keras.SymbolicScope() as scope:
        return scope.original_scope is not None


def all_layers(layer):
    """Returns the layer itself and all layers inside it, however deep.

    `Model.layers` has only the outermost layers, and other layers have no public list.
    """
    return layer._flatten_layers()


def symbolic_calls(layer):
    """Returns the calls of a layer in graphs of Keras: pairs of args and kwargs.

    The public `input` is only the first argument, and is missing after two calls.
    """
    arguments = (node.arguments for node in layer._inbound_nodes)
    return [(given.args, given.kwargs) for given in arguments]


def dense_layer(attention, name):
    """Returns a dense layer like "query_dense", private in `GroupQueryAttention`."""
    return getattr(attention, f"_{name}")


def value_without_autocast(variable):
    """Returns the value of a variable in its own dtype, inside any layer's `call`.

    `Variable.value` casts to the compute dtype of the layer that is being called.
    Values that are summed over chunks must not be rounded before.
    """
    if variable._value is None:  # while Keras traces a model, before it makes values
        return tf.cast(variable.value, variable.dtype)
    return tf.convert_to_tensor(variable._value)


def has_value(variable):
    """Returns True if the variable already has a value.

    It has none while the `tf.function` that creates it is traced: XLA cannot read it
    there to initialize another variable.
    """
    if tf.executing_eagerly() or variable._value is None:
        return True
    with tf.init_scope():
        return not tf.executing_eagerly() or bool(variable._value.is_initialized())


def compile_options(model):
    """Returns the arguments that `compile` was called with, a dict.

    The public `get_compile_config` serializes the optimizer and so reads variables: it
    works only eagerly, not in a training step.
    """
    return model._compile_config.config


def additional_loss(model, loss):
    """Returns a loss of `model.losses` as `compute_loss` adds it to the compiled loss.

    Keras sums it, and in `tf.distribute` divides it by the number of replicas. The
    public `compute_loss` does both only together with the compiled loss.
    """
    return model._aggregate_additional_loss(loss)


def wrapped_function(wrapper):
    """Returns the function inside a wrapper of Keras, and its keyword arguments.

    A wrapper is a `keras.metrics.MeanMetricWrapper` or a loss. A custom loss gives
    `(None, {})`. The public `get_config` fails if the function cannot be serialized.
    """
    return getattr(wrapper, "_fn", None), getattr(wrapper, "_fn_kwargs", {})


def same_named_entry(store, layer):
    """Finds the weights of `layer` in a file if they are not where Keras looks.

    Keras looks for the layers of a functional model by class and order, so no other
    class finds the weights of `keras.layers.MultiHeadAttention`. But each entry has the
    name of its layer. This function moves an empty store to the neighbouring entry
    named like the layer around `layer`, if exactly one is.
    """
    path = getattr(store, "_h5_entry_path", None)
    if len(store.keys()) or not path:
        return store
    *folder, _, attribute = path.split("/")
    beside = "/".join(folder) or "/"
    if beside not in store.h5_file:
        return store
    owner = layer.path.split("/")[-2]  # of layer names; `path` has attribute names
    named = []
    for key, entry in store.h5_file[beside].items():
        if "vars" in entry and entry["vars"].attrs.get("name") == owner:
            named.append("/".join([*folder, key, attribute]))
    return store.get(named[0]) if len(named) == 1 else store


# Attributes where Keras and TensorFlow list the layers of other attributes again.
NOTED_LAYERS = {
    "_functional",
    "_layers",
    "_operations",
    "_operations_by_depth",
    "_self_unconditional_dependency_names",
}


def unlock(layer):
    """Lets a built layer get further layers, variables and metrics."""
    layer._tracker.unlock()


def exchange(owner, name, value, before):
    """Sets an attribute of a built layer, and removes `before`, the layer it replaces.

    Keras itself neither adds layers to a built layer nor removes them.
    """
    tracker = owner._tracker
    locked = tracker.locked
    tracker.unlock()
    tracker.untrack(before)
    setattr(owner, name, value)
    if locked:
        tracker.lock()
