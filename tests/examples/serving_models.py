"""Small model, made at once, with the signatures of an exported one."""

import numpy as np
import tensorflow as tf

VOCABULARY = 13
_STATES = 97


def table(vocabulary_size=VOCABULARY):
    """Returns the logits for each state, which depends on all earlier tokens."""
    random = np.random.default_rng(0)
    return random.normal(size=(_STATES, vocabulary_size)).astype("float32")


class _Model(tf.Module):
    """Model whose state is `31 * before + token` modulo 97, and the token count."""

    def __init__(self, longest, logits):
        super().__init__()
        self.logits = tf.Variable(logits)
        self.longest = longest

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, "tokens")])
    def prefill(self, tokens):
        remembered = tf.zeros_like(tokens[:, 0])
        for t in tf.range(tf.shape(tokens)[1]):
            remembered = (31 * remembered + tokens[:, t]) % _STATES
        position = tf.zeros_like(remembered) + tf.shape(tokens)[1]
        return self.outputs(remembered, position)

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, 1), tf.int32, "tokens"),
            tf.TensorSpec((None,), tf.int32, "state_remembered"),
            tf.TensorSpec((None,), tf.int32, "state_position"),
        ]
    )
    def decode(self, tokens, state_remembered, state_position):
        remembered = (31 * state_remembered + tokens[:, 0]) % _STATES
        return self.outputs(remembered, state_position + 1)

    def outputs(self, remembered, position):
        # one row that is too long fails the whole batch, as with learned positions
        with tf.control_dependencies(
            [tf.debugging.assert_less(position, self.longest)]
        ):
            logits = tf.gather(self.logits, remembered)
        return {
            "logits": logits,
            "state_remembered": remembered,
            "state_position": position,
        }


def save(folder, logits=None, longest=2**30):
    """Writes a model with `logits`, which fails for sequences of `longest` tokens."""
    model = _Model(longest, table() if logits is None else logits)
    signatures = {"prefill": model.prefill, "decode": model.decode}
    tf.saved_model.save(model, folder, signatures)
    return folder


def likeliest(prompt, number, logits=None):
    """Returns the model's likeliest tokens after a prompt, computed in NumPy."""
    logits = table() if logits is None else logits
    remembered, tokens = 0, []
    for token in prompt:
        remembered = (31 * remembered + token) % _STATES
    for _ in range(number):
        tokens.append(int(logits[remembered].argmax()))
        remembered = (31 * remembered + tokens[-1]) % _STATES
    return tokens
