"""Export of a causal model as a SavedModel with `serve`, `prefill` and `decode`."""

import collections

import keras
import tensorflow as tf

# Names of the tensors that are not entries of the state.
TOKENS, LOGITS = "tokens", "logits"


def has_state(model):
    """Returns `True` if a model can compute its next tokens one by one."""
    attentions = [block.attention for block in model.blocks if block.attention]
    return model.causal and all(attention.supports_state for attention in attentions)


def export(model, filepath, input_signature, verbose=None):
    """Writes a SavedModel with the signatures `serve`, `prefill` and `decode`.

    TensorFlow Serving passes tensors by name, so the state is a flat dict there.
    """
    structure = model.get_initial_state(1)
    names = state_names(structure)

    def outputs(result):
        outputs, state = result
        logits = model.next_token_logits(outputs[:, -1])
        return {LOGITS: logits, **dict(zip(names, tf.nest.flatten(state)))}

    def prefill(tokens):
        return outputs(model(tokens, return_state=True))

    def decode(tokens, state):
        state = tf.nest.pack_sequence_as(structure, [state[name] for name in names])
        return outputs(model(tokens, state=state, return_state=True))

    states = {
        name: tf.TensorSpec((None, *entry.shape[1:]), entry.dtype, name)
        for name, entry in zip(names, tf.nest.flatten(structure))
    }
    archive = keras.export.ExportArchive()
    archive.track_and_add_endpoint("serve", model, input_signature)
    prompt = tf.TensorSpec((None, None), model.input_dtype, TOKENS)
    archive.add_endpoint("prefill", prefill, [prompt])
    token = tf.TensorSpec((None, 1), model.input_dtype, TOKENS)
    archive.add_endpoint("decode", decode, [token, states])
    archive.write_out(filepath, verbose=True if verbose is None else verbose)


def state_names(state):
    """Returns a name for each tensor of a state, in the order of `tf.nest.flatten`.

    Names are Python identifiers, which signatures need, such as `state_position` and
    `state_blocks_0_attention_sums`.
    """
    paths = [path for path, _ in keras.tree.flatten_with_path(state)]
    names = ["_".join(map(str, ("state", *path))) for path in paths]
    repeated = [name for name, count in collections.Counter(names).items() if count > 1]
    wrong = repeated or [name for name in names if not name.isidentifier()]
    if wrong:
        raise ValueError(
            "To export a model, the names of state entries, joined by underscores, "
            "must be different and have only letters, digits and underscores: rename "
            "them in empty_state of the attention or the embedding. Received: "
            f"{wrong}"
        )
    return names
