"""Trains linear attention, layer by layer, to return what exact attention returns."""

import functools
import math
import typing

import keras

from keras_performer.conversion.attention_like import is_attention
from keras_performer.conversion.calls import batches_of, watched, what_is_read
from keras_performer.conversion.convert import with_layers
from keras_performer.conversion.layer_match import LayerMatch
from keras_performer.conversion.report import TransferredLayer, TransferReport
from keras_performer.conversion.shared_copy import SharedCopies
from keras_performer.layers import (
    PerformerAttention,
    arguments,
    call_inputs,
    config,
    keras_privates,
)

# Of the batches one in so many is held out, where there are two or more.
HELD_OUT = 8


def transfer_attention(
    model: keras.layers.Layer,
    teacher: keras.layers.Layer,
    data: typing.Any,
    *,
    num_steps: int = 200,
    learning_rate: float = 1e-2,
    max_batches: int = 64,
    verbose: int = 1,
) -> tuple[keras.layers.Layer, TransferReport]:
    """Trains linear attention to return what a trained model's attention returns.

    Each `PerformerAttention` is trained to return what the exact attention layer in the
    same place of the teacher returns. Both get the teacher's inputs, so errors do not
    pass from layer to layer, and one pass of the teacher trains all layers. Only the
    weights of queries and keys and the gains of heads are trained. The optimizer is
    Adam with a learning rate that falls to 0 along a cosine; the loss is the squared
    difference divided by the square of the teacher's output, without padding.

    For each batch the teacher runs once; then the layers train one after another. Peak
    memory is one prediction of the teacher, the inputs and outputs of its attention
    layers for one batch, and one layer in training. Layers that are alike are compiled
    together.

    Args:
        model: a built model with `PerformerAttention`, as from `convert_to_performer`
            or `calibrate`. It stays unchanged.
        teacher: the model that it was converted from, with exact attention:
            `keras.layers.MultiHeadAttention`, `GroupQueryAttention` or
            `ExactAttention`.
        data: as in `approximation_report`, such as the teacher's training data. The
            last eighth of several batches is held out to decide which layers to keep.
            Batches of one shape save time.
        num_steps: int, training steps of each layer, one batch each. If batches run
            out, they start again from the first. Defaults to `200`.
        learning_rate: float, initial learning rate. Defaults to `0.01`.
        max_batches: int, the most batches to take from a dataset; they stay in memory.
            Defaults to `64`.
        verbose: 0 for silence, 1 for a progress bar of steps. Defaults to `1`.

    Returns:
        The new model and a `TransferReport`; `print` shows it as a table. A layer whose
        error on held-out batches did not fall keeps its old weights.

    Raises:
        ValueError: if the model has no layers to train, if the teacher does not match
            it, or if there are too few tokens for all of these layers.

    Reference:
        Zhang et al. 2024, LoLCATs, arXiv 2410.10254, section 3.2: attention transfer.

    Example:

    >>> import keras
    >>> from keras_performer import convert_to_performer
    >>> x = start = keras.Input((50, 8))
    >>> x = keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    >>> teacher = keras.Model(start, x)
    >>> performer, _ = convert_to_performer(teacher, exact_window=8, seed=0)
    >>> data = keras.random.normal((4, 50, 8), seed=0)
    >>> performer, report = transfer_attention(
    ...     performer, teacher, data, num_steps=5, verbose=0
    ... )
    >>> report.layers[0].after <= report.layers[0].before
    True
    """
    arguments.positive_int("num_steps", num_steps)
    arguments.positive_int("max_batches", max_batches)
    if not learning_rate > 0:
        raise ValueError(
            "learning_rate must be a positive float. Received: "
            f"learning_rate={learning_rate!r}"
        )
    call_inputs.check_model("model", model)
    call_inputs.check_model("teacher", teacher)
    batches = batches_of(data, max_batches)
    num_held_out = math.ceil(len(batches) / HELD_OUT)
    held_out, others = batches[-num_held_out:], batches[:-num_held_out] or batches
    new = with_layers(model, {})
    matches, left_out = _matches(new, teacher)

    def attend(batch, learn):
        """Has each layer learn from its call in the teacher."""
        calls = []

        def note(layer, given, outputs):
            if layer in matches:
                calls.append((layer, given, keras.tree.flatten(outputs)[0]))

        with watched(teacher, note):
            teacher(batch, training=False)
        # not inside of the calls, where mixed precision casts variables
        for layer, given, wanted in calls:
            if layer not in matches:  # left out since
                continue
            match = matches[layer]
            try:
                learn(match, *what_is_read(match.layer, given), wanted)
            except ValueError as error:
                matches.pop(layer).give_up()
                left_out[layer] = str(error)

    def errors():
        for match in matches.values():
            match.forget()
        for batch in held_out:
            attend(batch, LayerMatch.measure)
        return {layer: match.error() for layer, match in matches.items()}

    before = errors()
    _check(matches, left_out)
    progress = keras.utils.Progbar(num_steps, verbose=verbose, unit_name="step")
    for step in range(num_steps):
        rate = learning_rate * (1 + math.cos(math.pi * step / num_steps)) / 2
        learn = functools.partial(LayerMatch.train, learning_rate=rate)
        attend(others[step % len(others)], learn)
        progress.add(1)
    after = errors()
    rows = []
    for layer, match in matches.items():
        if not after[layer] < before[layer]:
            match.give_up()
            after[layer] = before[layer]
        errors_of = before[layer], after[layer]
        rows.append(TransferredLayer(layer.path, *errors_of, match.seconds))
    return new, TransferReport(rows, {x.path: why for x, why in left_out.items()})


def _matches(model, teacher):
    """Dict of the layers of a teacher to a `LayerMatch` each, and what is left out."""
    linear = [
        layer
        for layer in keras_privates.all_layers(model)
        if isinstance(layer, PerformerAttention) and layer.built
    ]
    try:
        pairs = dict(config.pairs(model, teacher, leaves=linear))
    except LookupError as error:
        raise ValueError(
            "teacher must be the model that model was converted from, or one like it. "
            f"Received: a teacher without {error.args[0]!r} where model has one"
        ) from error
    matches, left_out, copies = {}, {}, SharedCopies()
    for layer in linear:
        other = pairs.get(layer)
        if other is None:
            left_out[layer] = "The teacher has no layer of its own in its place."
            continue
        if not is_attention(other) or isinstance(other, PerformerAttention):
            raise ValueError(
                f"teacher must have exact attention where model has {layer.path}: see "
                "`convert_to_softmax`. Received: another teacher. It has "
                f"{type(other).__name__}"
            )
        match = LayerMatch(layer, copies)
        if match.weights:
            matches[other] = match
        else:
            left_out[other] = "Its queries and keys are frozen."
    return matches, left_out


def _check(matches, left_out):
    """Leaves out layers that data hardly reaches, and refuses to train none."""
    few = ""
    for layer, match in list(matches.items()):
        if not match.num_tokens:
            left_out[layer] = "No token of data reaches it."
        elif match.num_tokens < match.layer.key_dim:
            left_out[layer] = few = (
                f"data must have at least key_dim={match.layer.key_dim} tokens for "
                f"{layer.path} in what is held out; a few thousand are better. It has "
                f"{match.num_tokens}"
            )
        if layer in left_out:
            del matches[layer]
    if not matches and few:
        raise ValueError(few)
    if not matches:
        raise ValueError(
            "model must have PerformerAttention that can be trained and is called with "
            "data: see `convert_to_performer`. Received: another model. It has none. "
            f"{' '.join(left_out.values())}".strip()
        )
