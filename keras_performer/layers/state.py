"""The state of an attention layer: a dict, of which a mechanism has one entry."""

import tensorflow as tf

from keras_performer.layers import call_inputs


class HasInitialState:
    """Mixin with the earlier name of `get_initial_state`, which version 0.2 drops."""

    def initial_state(self, *args, **kwargs):
        return self.get_initial_state(*args, **kwargs)


def later(state, inputs, attention):
    """The state after the tokens of a call, where a mechanism has the entry given."""
    batch, length = tf.unstack(tf.shape(inputs.query)[:2])
    position = tf.fill((batch,), length)
    if state is not None:
        position += state["position"]
    after = {"position": position, "attention": attention}
    return {**after, **call_inputs.last_segment(inputs.segment_ids, state)}


def no_state(layer):
    """The error of a layer that has no state."""
    return ValueError(
        f"{type(layer).__name__} has no state: it sees a sequence as a whole. Use "
        "PerformerAttention(causal=True) to go through a sequence in pieces. Received: "
        f"layer={layer.name!r}"
    )


def check(layer, causal, state, return_state, return_attention_scores):
    """Raises a `ValueError` for a call with a state that there cannot be."""
    if not layer.supports_state:
        raise no_state(layer)
    if not causal:
        raise ValueError(
            "A state belongs to causal attention: make the layer with causal=True. "
            f"Received: state={'None' if state is None else 'given'}, "
            f"return_state={return_state}, causal=False"
        )
    if state is not None and return_attention_scores:
        raise ValueError(
            "return_attention_scores=True needs the whole sequence in one call: the "
            "scores of keys that only the state knows cannot be told apart. Call "
            "without state. Received: return_attention_scores=True, and state"
        )
    if state is None:
        return
    names = {"position", "attention"}
    if not isinstance(state, dict) or set(state) - {"segment"} != names:
        raise ValueError(
            'state must be a dict with the entries "position" and "attention", from '
            "get_initial_state or an earlier call, and of packed sequences with the "
            f'entry "segment". Received: state {_entries_of(state)}'
        )
    if tf.as_dtype(state["position"].dtype) != tf.int32:
        raise ValueError(
            "state must keep its dtypes, int32 and float32, whatever the layer "
            "computes in: pass it as get_initial_state or an earlier call gave it. "
            f"Received: position of dtype {tf.as_dtype(state['position'].dtype).name}"
        )


def attention_entry(layer, kind, window, entry):
    """The entry "attention" of a layer's state as `ops` takes it, a tuple of that kind.

    `window` is the argument of the layer that says which state it has.
    """
    if not isinstance(entry, dict) or set(entry) != set(kind._fields):
        *names, last = (f'"{name}"' for name in kind._fields)
        raise ValueError(
            f'The entry "attention" of state must be a dict of {", ".join(names)} and '
            f"{last}: pass what get_initial_state or an earlier call of this "
            f"{type(layer).__name__}({window}={getattr(layer, window)}) gave. "
            f"Received: one {_entries_of(entry)}"
        )
    return kind(**entry)


def _entries_of(state):
    """Description of a wrong state: its entries, or that it has none."""
    if isinstance(state, dict):
        return f"with the entries {list(state)}"
    return f"of type {type(state).__name__}"
