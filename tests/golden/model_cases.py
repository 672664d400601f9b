"""Language models: logits, gradients, states, training, generated tokens."""

import functools

import keras
import numpy as np
import tensorflow as tf

from keras_performer import PerformerLM, RedrawFeatures, generate
from tests.golden.numbers import ids, normal, set_weights, state_arrays
from tests.layers.inputs import plain_options

VOCABULARY = 11
IDS = ids("inputs", (3, 12), VOCABULARY)
TARGETS = ids("targets", (3, 12), VOCABULARY)
PADDED = np.arange(12) < [[12], [7], [10]]


def _model(projections=True, **options):
    defaults = dict(num_layers=2, num_heads=2, hidden_dim=8, num_random_features=6)
    defaults.update(intermediate_dim=12, chunk_size=4, seed=1)
    defaults.update(position_embedding="learned")
    defaults.update(plain_options(options.get("attention", "performer")))
    if options.get("attention") == "exact":
        del defaults["num_random_features"], defaults["chunk_size"]
    model = PerformerLM(VOCABULARY, max_length=24, **{**defaults, **options}, name="lm")
    set_weights(model, projections)
    return model


def logits(mask=None, **options):
    """Computes logits and gradients with a tape around a training call."""
    model = _model(**options)
    with tf.GradientTape() as tape:
        output = model(IDS, mask=mask, training=True)
        loss = tf.reduce_sum(output * normal("logits", output.shape))
    weights = model.trainable_weights
    gradients = tape.gradient(loss, [w.value for w in weights])
    named = {f"gradient {w.path}": g for w, g in zip(weights, gradients)}
    if options.get("attention") == "exact":
        # the bias of keys cancels in softmax: its gradient is 0, except for rounding
        named = {name: g for name, g in named.items() if "key/bias" not in name}
    return {"logits": output, "inference": model(IDS, mask=mask), **named}


def continued(**options):
    """Computes a sequence in three calls, the second with one token."""
    model = _model(**options)
    state, numbers = model.get_initial_state(3), {}
    for start, end in ((0, 5), (5, 6), (6, 12)):
        output, state = model(IDS[:, start:end], state=state, return_state=True)
        numbers[f"logits {start}"] = output
    for index, array in enumerate(state_arrays(state)):
        numbers[f"state {index}"] = array
    return numbers


def training(steps=3, metrics=(), callbacks=(), eager=True, **options):
    """Trains a few steps; returns each loss, and the accumulated gradients."""
    model = _model(**options)
    optimizer = keras.optimizers.SGD(0.2, momentum=0.5)
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=list(metrics),
        run_eagerly=eager,
        jit_compile=False,
    )
    # one batch per epoch, so that the history has the loss of every step
    history = model.fit(
        IDS, TARGETS, batch_size=3, epochs=steps, verbose=0, callbacks=list(callbacks)
    ).history
    numbers = {name: np.array(values) for name, values in history.items()}
    moments = [v for v in optimizer.variables if v.path.endswith("_momentum")]
    assert len(moments) == len(model.trainable_weights)
    named = zip(model.trainable_weights, moments)
    numbers.update((f"momentum {weight.path}", moment) for weight, moment in named)
    for index, block in enumerate(model.blocks):
        numbers[f"redraws {index}"] = block.attention.redraw_count
    return numbers


def generated(**options):
    model = _model(num_layers=1)
    return {"tokens": generate(model, IDS[:, :4], 16, **options)}


def redrawn():
    """Returns the layers' own random features, before and after redraws."""
    model, numbers = _model(projections=False, num_layers=1), {}
    (block,) = model.blocks
    for redraws in (0, 1, 2):
        if redraws:
            block.attention.redraw_features(redraws)
        numbers[f"count {redraws}"] = block.attention.redraw_count
        numbers[f"matrix {redraws}"] = block.attention.projection_matrix
    return {**numbers, "logits": model(IDS)}


_partial = functools.partial
CASES = {
    "lm": _partial(logits),
    "lm bidirectional, padded": _partial(
        logits, PADDED, causal=False, position_shape=(4, 3, 2)
    ),
    "lm exact": _partial(logits, attention="exact"),
    "lm recompute block, bidirectional": _partial(
        logits, PADDED, recompute="block", causal=False
    ),
    "lm bfloat16": _partial(logits, dtype="mixed_bfloat16"),
    "lm float64": _partial(logits, PADDED, dtype="float64", recompute="block"),
    "lm continued, favor+": _partial(continued, feature_map="favor+"),
    "train": _partial(training, eager=False, num_layers=1),
    "train recompute block": _partial(
        training, recompute="block", metrics=["accuracy"], dropout=0.2, steps=2
    ),
    "train recompute network": _partial(
        training, recompute="network", dropout=0.2, feature_map="favor+", steps=2
    ),
    "train and redraw": _partial(
        training, callbacks=[RedrawFeatures(2)], projections=False, num_layers=1
    ),
    "generate sampled": _partial(
        generated, temperature=1.5, top_k=6, top_p=0.9, seed=4
    ),
    "redrawn": redrawn,
}
