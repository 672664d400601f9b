"""The parts of Keras that are not its public interface, and why each is needed.

No other file of the package uses any. `tests/layers/test_keras_privates.py` holds what
is said here against the oldest and the newest Keras that setup.cfg allows.
"""

import keras
import tensorflow as tf


def implicit_mask(x):
    """The mask that Keras keeps on a tensor, or `None`.

    `keras.layers.Layer` hands implicit masks to `call` only where an argument is named
    after the tensor's; inside another layer's `call` the mask is read from the tensor.
    """
    return getattr(x, "_keras_mask", None)


def set_implicit_mask(x, mask):
    """Puts a mask on a tensor, as Keras' layers and losses with `ignore_class` do.

    `keras.losses.Loss` reads it there; values computed in chunks have to get it again.
    """
    x._keras_mask = mask


def with_mask(x, mask):
    """A tensor like x with a mask, as Keras' layers return it; x if it is `None`."""
    if mask is not None:
        x = tf.identity(x)
        set_implicit_mask(x, mask)
    return x


def in_symbolic_scope():
    """True while Keras traces layers for the shapes of what they return.

    No function that is public says so, but a `keras.SymbolicScope` notes the one around
    it.
    """
    with keras.SymbolicScope() as scope:
        return scope.original_scope is not None


def all_layers(layer):
    """The layer itself and all layers inside it, however deep.

    `Model.layers` has the outermost ones only, and other layers have no public list.
    """
    return layer._flatten_layers()


def symbolic_calls(layer):
    """Calls of a layer in graphs of Keras: pairs of args and kwargs.

    The public `input` is the first argument only, and not there after two calls.
    """
    arguments = (node.arguments for node in layer._inbound_nodes)
    return [(given.args, given.kwargs) for given in arguments]


def dense_layer(attention, name):
    """A built dense layer, such as "query_dense"; `GroupQueryAttention` hides them."""
    return getattr(attention, f"_{name}")


def value_without_autocast(variable):
    """The value of a variable in its own dtype, inside of any layer's `call`.

    `Variable.value` casts to the compute dtype of the layer that is being called. What
    is summed up over chunks must not be rounded before.
    """
    if variable._value is None:  # while Keras traces a model, and makes it afterwards
        return tf.cast(variable.value, variable.dtype)
    return tf.convert_to_tensor(variable._value)


def has_value(variable):
    """True if a variable has a value: not in the graph of a function that makes it.

    From there XLA takes no variable out whose first value is read from another.
    """
    if tf.executing_eagerly() or variable._value is None:
        return True
    with tf.init_scope():
        return not tf.executing_eagerly() or bool(variable._value.is_initialized())


def compile_options(model):
    """Arguments that `compile` was called with, a dict.

    The public `get_compile_config` serializes the optimizer, for which it reads
    variables: it works eagerly only, and not in a training step.
    """
    return model._compile_config.config


def additional_loss(model, loss):
    """A loss of `model.losses` as `compute_loss` adds it to the compiled one.

    Keras sums it up, and in `tf.distribute` divides it by the number of replicas. The
    public `compute_loss` does both only together with the compiled loss.
    """
    return model._aggregate_additional_loss(loss)


def wrapped_function(wrapper):
    """The function inside a wrapper of Keras, and its keyword arguments.

    A wrapper is a `keras.metrics.MeanMetricWrapper` or a loss; `(None, {})` for a loss
    of one's own. The public `get_config` serializes the function, which it may not be.
    """
    return getattr(wrapper, "_fn", None), getattr(wrapper, "_fn_kwargs", {})


def same_named_entry(store, layer):
    """Finds the weights of `layer` in a file if they are not where Keras looks.

    Keras looks for the layers of a functional model by class and order, so no other
    class finds the weights of `keras.layers.MultiHeadAttention`. But each entry has the
    name of its layer. This function moves an empty store to the neighbouring entry
    named like the layer around `layer`, if there is one.
    """
    path = getattr(store, "_h5_entry_path", None)
    if len(store.keys()) or not path:
        return store
    *folder, _, attribute = path.split("/")
    beside = "/".join(folder) or "/"
    if beside not in store.h5_file:
        return store
    owner = layer.path.split("/")[-2]  # names, where those above are attributes
    named = []
    for key, entry in store.h5_file[beside].items():
        if "vars" in entry and entry["vars"].attrs.get("name") == owner:
            named.append("/".join([*folder, key, attribute]))
    return store.get(named[0]) if len(named) == 1 else store


# Attributes in which Keras and TensorFlow note the layers that stand in others.
NOTED_LAYERS = {
    "_functional",
    "_layers",
    "_operations",
    "_operations_by_depth",
    "_self_unconditional_dependency_names",
}


def unlock(layer):
    """Lets a layer that is built have further layers, variables and metrics."""
    layer._tracker.unlock()


def exchange(owner, name, value, before):
    """Sets an attribute of a built layer, of which a layer `before` is to be forgotten.

    Keras lets nobody add layers to one that is built, and forgets none.
    """
    tracker = owner._tracker
    locked = tracker.locked
    tracker.unlock()
    tracker.untrack(before)
    setattr(owner, name, value)
    if locked:
        tracker.lock()
