"""The signatures of an exported model without a service: a program of `worker`.

A case is a dict: folder, batch (sessions), prompt_length and new_tokens. A run draws
the likeliest token after token, each by one call of `decode` with the state of all.
"""

import numpy as np
import tensorflow as tf

from benchmarks import tensorflow_programs

start = tensorflow_programs.start


def program(case):
    loaded = tf.saved_model.load(case["folder"])
    prefill, decode = (loaded.signatures[name] for name in ("prefill", "decode"))
    # the prompts may be equal: what the numbers are does not matter to speed
    prompt = prompt_of(case["prompt_length"], case["vocabulary_size"])
    state = dict(prefill(tokens=tf.constant([prompt])))
    state = {name: tf.repeat(x, case["batch"], axis=0) for name, x in state.items()}

    def run():
        after = dict(state)
        for _ in range(case["new_tokens"]):
            logits = after.pop("logits").numpy()
            tokens = logits.argmax(-1).astype("int32")[:, np.newaxis]
            after = dict(decode(tokens=tf.constant(tokens), **after))
        after["logits"].numpy()
        assert loaded  # it owns the weights

    return lambda: None, run


def prompt_of(length, vocabulary_size, seed=0):
    """Random tokens, a list of ints."""
    random = np.random.default_rng(seed)
    return random.integers(vocabulary_size, size=length, dtype="int32").tolist()
