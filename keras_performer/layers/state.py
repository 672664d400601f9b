"""The state of an attention layer: a dict with one entry for the mechanism."""

import tensorflow as tf

from keras_performer.layers import call_inputs


class HasInitialState:
    """Mixin with the old name of `get_initial_state`, which version 0.2 removes."""

    def initial_state(self, *args, **kwargs):
        return self.get_initial_state(*args, **kwargs)


def later(state, inputs, attention):
    """Returns the state after a call; `attention` is the entry of the mechanism."""
    batch, length = tf.unstack(tf.shape(inputs.query)[:2])
    position = tf.fill((batch,), length)
    if state is not None:
        position += state["position"]
    after = {"position": position, "attention": attention}
    return {**after, **call_inputs.last_segment(inputs.segment_ids, state)}


def no_state(layer):
    """Returns the error for a layer that has no state."""
    return ValueError(
        f"{type(layer).__name__} has no state: it needs the whole sequence in one "
        "call. Use PerformerAttention(causal=True) to process a sequence in pieces. "
        f"Received: layer={layer.name!r}"
    )


def check(layer, inputs, state, return_state, return_attention_scores):
    """Raises a `ValueError` if a call cannot have this state, or any state."""
    if not layer.supports_state:
        raise no_state(layer)
    if not inputs.visible.causal:
        raise ValueError(
            "Only causal attention has a state: make the layer with causal=True. "
            f"Received: state={'None' if state is None else 'given'}, "
            f"return_state={return_state}, causal=False"
        )
    if state is None:
        return
    if return_attention_scores:
        raise ValueError(
            "return_attention_scores=True needs the whole sequence in one call: a "
            "state does not give the scores of earlier keys. Call without state. "
            "Received: return_attention_scores=True, and state"
        )
    check_entries(state, ("position", "attention"), "segment")
    if tf.as_dtype(state["position"].dtype) != tf.int32:
        raise ValueError(
            "state must keep its dtypes, int32 and float32, with any dtype of the "
            "layer: pass it unchanged from get_initial_state or an earlier call. "
            f"Received: position of dtype {tf.as_dtype(state['position'].dtype).name}"
        )
    check_batch(state, inputs.query)


def check_batch(state, inputs):
    """Raises a `ValueError` if a state, if any, is for another batch size."""
    if state is None:
        return
    batch, shape = inputs.shape[0], tf.TensorShape(state["position"].shape)
    if not shape.is_compatible_with((batch,)):
        raise ValueError(
            "state must come from get_initial_state or an earlier call for this batch "
            f"size: position of shape ({batch},). Received: position of shape "
            f"{tuple(shape)}"
        )


def check_no_state(layer, state, return_state, return_attention_scores=False):
    """Raises a `ValueError` for arguments that slices of sequences do not have."""
    given = {
        "state": state is not None,
        "return_state": return_state,
        "return_attention_scores": return_attention_scores,
    }
    names = " and ".join(name for name, is_given in given.items() if is_given)
    if names:
        raise ValueError(
            f"With sequence_parallel a layer takes no {names}: it exchanges its own "
            "states with the other replicas. Generate text and look at attention on "
            f"one device, outside of the strategy. Received: {names}, and layer="
            f"{layer.name!r}"
        )


def check_entries(state, names, packed=None):
    """Raises a `ValueError` unless a state is a dict with the entries `names`.

    `packed` names an entry that is also there for packed sequences.
    """
    if not isinstance(state, dict) or set(state) - {packed} != set(names):
        entries = " and ".join(f'"{name}"' for name in names)
        more = f', and for packed sequences also the entry "{packed}"' if packed else ""
        raise ValueError(
            f"state must be a dict with the entries {entries}, from get_initial_state "
            f"or an earlier call{more}. Received: state {_entries_of(state)}"
        )


def entry_of(state):
    """Returns the entry "attention" of a state, made of a tuple of `ops` or `None`."""
    if state is None:
        return None
    return {name: x for name, x in state._asdict().items() if x is not None}


def attention_entry(layer, kind, window, entry):
    """Inverts `entry_of`; returns the tuple `kind`, which `ops` takes.

    `window` names the layer's argument on which the kind of state depends.
    """
    fields = [x for x in kind._fields if x != "decay" or layer.forget_gate]
    if not isinstance(entry, dict) or set(entry) != set(fields):
        *names, last = (f'"{name}"' for name in fields)
        raise ValueError(
            f'The entry "attention" of state must be a dict of {", ".join(names)} and '
            f"{last}: pass a state from get_initial_state or an earlier call of this "
            f"{type(layer).__name__}({window}={getattr(layer, window)}). "
            f"Received: one {_entries_of(entry)}"
        )
    return kind(**entry)


def _entries_of(state):
    """Describes a wrong state by its entries or its type."""
    if isinstance(state, dict):
        return f"with the entries {list(state)}"
    return f"of type {type(state).__name__}"
