"""Errors in calls of a layer."""

import numpy as np
import tensorflow as tf

from keras_performer import layers, zoo
from tests.wrong_uses.small import FOUND_AS_IT_RUNS, IDS, X, causal, made
from tests.wrong_uses.wrong_use import WrongUse

MEMORY = np.random.default_rng(1).standard_normal((2, 9, 8)).astype("float32")
BATCHED = np.ones((2, 6, 6), bool)


def twice(layer, first, then):
    layer(first)
    return layer(then)


def with_state(layer, state):
    return layer(X, state=state, return_state=True)


def halves():
    return tf.nest.map_structure(
        lambda x: tf.cast(x, "float16"), causal().get_initial_state(2)
    )


WRONG_USES = {
    "Inputs of a layer": [
        WrongUse(
            "query must have shape (batch, length, features)",
            "query of shape (2, 6)",
            "embed ids of tokens first",
            lambda: made()(IDS),
        ),
        WrongUse(
            "query must be one tensor of shape (batch, length, features)",
            "[(2, 6, 8), (2, 9, 8)]",
            "layer(query, value, key)",
            lambda: made()([X, MEMORY]),
        ),
        WrongUse(
            "query must be one tensor of shape (batch, length, features)",
            "RaggedTensor",
            "padded first (x.to_tensor()), and masked",
            lambda: made()(tf.RaggedTensor.from_tensor(X, lengths=[3, 6])),
        ),
        WrongUse(
            "query must be a tensor of real numbers",
            "dtype complex64",
            "take the real or absolute value",
            lambda: made()(X.astype("complex64")),
        ),
        WrongUse(
            "value and key must have the same shape but for the last axis",
            "key_shape=(2, 6, 8)",
            "layer(query, value, key)",
            lambda: made()(X, MEMORY, X),
        ),
        WrongUse(
            "query, key and value must have the same batch size",
            "key of shape (1, 9, 8)",
            "repeat the smaller one",
            lambda: made()(X, MEMORY[:1]),
        ),
        WrongUse(
            "inputs must have 8 features",
            "inputs of shape (2, 6, 5)",
            "make another for inputs of another width",
            lambda: twice(made(), X, X[..., :5]),
        ),
        WrongUse(
            "Causal attention needs as many queries as keys",
            "query of shape (2, 6, 8) and key of shape (2, 9, 8)",
            "For cross-attention use causal=False",
            lambda: causal()(X, MEMORY),
        ),
        WrongUse(
            "Causal attention needs as many queries as keys",
            "query of shape (2, 6, 8) and key of shape (2, 9, 8)",
            "pass the new tokens as query, and state",
            lambda: made()(X, MEMORY, use_causal_mask=True),
        ),
        WrongUse(
            "rotary needs one key for each query",
            "key of shape (2, 9, 8)",
            "use rotary=None for attention to another sequence",
            lambda: made(rotary=True)(X, MEMORY),
        ),
        WrongUse(
            "exact_window needs one key for each query",
            "key of shape (2, 9, 2, 4)",
            "leave it out of attention to another sequence",
            lambda: made(exact_window=2)(X, MEMORY),
        ),
        WrongUse(
            "Attention of blocks needs one key for each query",
            "key of shape (2, 9, 2, 4)",
            "use another for attention to another sequence",
            lambda: zoo.BigBirdAttention(2, 4, block_size=2)(X, MEMORY),
        ),
        WrongUse(
            "LinformerAttention ends at max_length",
            "max_length=4, of 6 tokens",
            "make it with the max_length of the longest",
            lambda: zoo.LinformerAttention(2, 4, max_length=4)(X),
        ),
        WrongUse(
            "positions are what attention with rotary reads",
            "positions, and rotary=None",
            "make the layer with rotary=True",
            lambda: made()(X, positions=IDS),
        ),
        WrongUse(
            "segment_ids must be ints",
            "dtype float64",
            "one for each token",
            lambda: made()(X, segment_ids=np.ones((2, 6))),
        ),
        WrongUse(
            "LinformerAttention cannot keep segments of a packed sequence apart",
            "layer='linformer",
            "call it without segment_ids, with a segment in each row",
            lambda: zoo.LinformerAttention(2, 4, max_length=8)(X, segment_ids=IDS),
        ),
    ],
    "Masks": [
        WrongUse(
            "attention_mask must not differ by query or by head",
            "attention_mask of shape (2, 6, 6)",
            "causal=True (or use_causal_mask=True) for causality",
            lambda: made()(X, attention_mask=BATCHED),
        ),
        WrongUse(
            "attention_mask must not differ by query or by head",
            "attention_mask of shape (6, 6)",
            "use key_mask (B, S)",
            lambda: made()(X, attention_mask=BATCHED[0]),
        ),
        WrongUse(
            "attention_mask must have shape (2, 1, 6)",
            "attention_mask of shape (2, 1, 9)",
            "attention_mask of shape (B, 1, S) or (B, 1, 1, S)",
            lambda: made()(X, attention_mask=np.ones((2, 1, 9))),
        ),
        WrongUse(
            "value_mask must have shape (2, 9)",
            "value_mask of shape (2, 6)",
            "query_mask (B, T) for queries",
            lambda: made()(X, MEMORY, value_mask=BATCHED[0, :2]),
        ),
        WrongUse(
            "key_mask must be bool, or 1 where something is seen",
            "-1.e+09",
            "pass mask >= 0",
            lambda: made()(X, key_mask=np.where(IDS > 1, 0.0, -1e9)),
            FOUND_AS_IT_RUNS,
        ),
    ],
    "States": [
        WrongUse(
            "A state belongs to causal attention",
            "return_state=True, causal=False",
            "make the layer with causal=True",
            lambda: made()(X, return_state=True),
        ),
        WrongUse(
            "ExactAttention has no state",
            "layer='exact_attention",
            "Use PerformerAttention(causal=True)",
            lambda: layers.ExactAttention(2, 4, causal=True).get_initial_state(2),
        ),
        WrongUse(
            "batch_size must be an int",
            "batch_size=(2, 6)",
            "0 or more",
            lambda: causal().get_initial_state((2, 6)),
        ),
        WrongUse(
            "state must be a dict with the entries",
            "state of type tuple",
            "from get_initial_state or an earlier call",
            lambda: with_state(causal(), (1, 2)),
        ),
        WrongUse(
            "state must come from get_initial_state or an earlier call",
            "running_max of shape (3, 2, 8)",
            "for this batch size",
            lambda: with_state(causal(), causal().get_initial_state(3)),
        ),
        WrongUse(
            'The entry "attention" of state must be a dict of',
            "['running_max', 'sums', 'key', 'value', 'seen']",
            "an earlier call of this PerformerAttention(exact_window=None)",
            lambda: with_state(causal(), causal(exact_window=4).get_initial_state(2)),
        ),
        WrongUse(
            "state must be of the same window",
            "key of shape (2, 2, 2, 4)",
            "from an earlier call",
            lambda: with_state(
                causal(exact_window=4), causal(exact_window=2).get_initial_state(2)
            ),
        ),
        WrongUse(
            "state must keep its dtypes",
            "position of dtype float16",
            "pass it as get_initial_state or an earlier call gave it",
            lambda: with_state(causal(), halves()),
        ),
        WrongUse(
            "return_attention_scores=True needs the whole sequence in one call",
            "return_attention_scores=True, and state",
            "Call without state",
            lambda: causal()(
                X, state=causal().get_initial_state(2), return_attention_scores=True
            ),
        ),
        WrongUse(
            "A state that is to go on with segment_ids knows the last of them",
            "['position', 'attention']",
            "use get_initial_state(batch_size, packed=True)",
            lambda: causal()(X, state=causal().get_initial_state(2), segment_ids=IDS),
        ),
    ],
}
