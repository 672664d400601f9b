"""Trains linear attention, layer by layer, to return the outputs of exact attention."""

import functools
import json
import math
import time
import typing

import keras
import numpy as np
import tensorflow as tf

from keras_performer.conversion.attention_like import is_attention
from keras_performer.conversion.calls import (
    batches_of,
    require_tokens,
    watch,
    what_is_read,
)
from keras_performer.conversion.converted import with_layers
from keras_performer.conversion.errors import relative_error
from keras_performer.conversion.report import TransferredLayer, TransferReport
from keras_performer.layers import (
    PerformerAttention,
    arguments,
    call_inputs,
    config,
    keras_privates,
)

# One batch in so many is held out, if there are at least two.
HELD_OUT = 8
# Limit of the gradient norm of a layer: far tokens of sharp heads make it large.
CLIP_NORM = 1.0
# Layer that models must have, for errors.
WANTED = (
    "a PerformerAttention that can be trained and is called with data: make one with "
    "`convert_to_performer`"
)


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
    """Trains linear attention to return the outputs of a trained model's attention.

    Each `PerformerAttention` is trained to return the outputs of the exact attention
    layer at the same path of the teacher. Both get the teacher's inputs, so errors do
    not pass from layer to layer, and one pass of the teacher trains all layers. Only
    the weights of queries and keys and the gains of heads are trained. The optimizer is
    Adam with a learning rate that falls to 0 along a cosine; the loss is the squared
    difference divided by the square of the teacher's output, without padding.

    The layers train one after another. Peak memory is one prediction of the teacher,
    the inputs and outputs of its attention layers for one batch, and one layer in
    training.

    Args:
        model: a built model with `PerformerAttention`, as from `convert_to_performer`.
            It stays unchanged. `calibrate` may give it Taylor features, which learned
            worse in our tests.
        teacher: the model from which `model` was converted, with exact attention:
            `keras.layers.MultiHeadAttention`, `GroupQueryAttention` or
            `ExactAttention`.
        data: as in `approximation_report`, such as the teacher's training data. If
            there are several batches, the last eighth of them is held out, to decide
            which layers keep their new weights. Batches of one shape save time.
        num_steps: int, training steps of each layer, one batch each. If batches run
            out, they start again from the first. Defaults to `200`.
        learning_rate: float, initial learning rate. Defaults to `0.01`.
        max_batches: int, the most batches to take from a dataset; they stay in memory.
            Defaults to `64`.
        verbose: 0 for silence, 1 for a progress bar of steps. Defaults to `1`.

    Returns:
        The new model and a `TransferReport`; `print` shows it as a table. A layer whose
        error on held-out batches did not fall keeps its old weights. Layers with
        `forget_gate=True` stay as they are, as the report says.

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
    arguments.nonnegative("learning_rate", learning_rate, zero=False)
    call_inputs.check_model("model", model)
    call_inputs.check_model("teacher", teacher)
    batches = batches_of(data, max_batches)
    num_held_out = math.ceil(len(batches) / HELD_OUT)
    held_out, others = batches[-num_held_out:], batches[:-num_held_out] or batches
    new = with_layers(model, {})
    matches, left_out = _matches(new, teacher)

    def attend(batch, learn):
        """Calls `learn` for each layer with its call in the teacher."""
        calls = []

        def note(layer, given, outputs):
            if layer in matches:
                calls.append((layer, given, keras.tree.flatten(outputs)[0]))

        watch(teacher, batch, note)
        # after the calls, because mixed precision casts variables inside them
        for layer, given, wanted in calls:
            if layer not in matches:  # left out by an earlier call
                continue
            match = matches[layer]
            try:
                learn(match, *what_is_read(match.layer, given), wanted)
            except ValueError as error:
                matches.pop(layer).give_up()
                left_out[layer] = str(error)

    def errors():
        for match in matches.values():
            match.sums = np.zeros(3)
        for batch in held_out:
            attend(batch, LayerMatch.measure)
        return {x: float(relative_error(*m.sums[:2])) for x, m in matches.items()}

    before = errors()
    num_tokens = {x: (m.layer.key_dim, int(m.sums[2])) for x, m in matches.items()}
    require_tokens(num_tokens, left_out, "the held-out batches", model, WANTED)
    matches = {x: match for x, match in matches.items() if x not in left_out}
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
    """Returns a dict from teacher layers to `LayerMatch`, and layers left out."""
    linear = [
        layer
        for layer in keras_privates.all_layers(model)
        if isinstance(layer, PerformerAttention) and layer.built
    ]
    try:
        pairs = dict(config.pairs(model, teacher, leaves=linear))
    except LookupError as error:
        raise ValueError(
            "teacher must be the model before its conversion, or have the same layers. "
            f"Received: a teacher without {error.args[0]!r}, which model has"
        ) from error
    matches, left_out, copies = {}, {}, {}
    for layer in linear:
        other = pairs.get(layer)
        if other is None:
            left_out[layer] = "The teacher has no separate layer at this path."
            continue
        if not is_attention(other) or isinstance(other, PerformerAttention):
            raise ValueError(
                f"teacher must have exact attention where model has {layer.path}: make "
                "it with `convert_to_softmax`. Received: a teacher with "
                f"{type(other).__name__} there"
            )
        if layer.forget_gate:
            left_out[other] = "It has a forget gate, whose decays are not learned."
            continue
        match = LayerMatch(layer, copies)
        if match.weights:
            matches[other] = match
        else:
            left_out[other] = "Its queries and keys are frozen."
    return matches, left_out


class LayerMatch:
    """A `PerformerAttention` in training, with its optimizer and measured errors.

    All weights train except the value and output projections and frozen weights. The
    `sums` over the tokens of all measured calls are those of `SharedCopy`.
    """

    def __init__(self, layer, copies):
        self.layer = layer
        kept = (*layer.value_dense.weights, *layer.output_dense.weights)
        kept = {id(x) for x in kept}
        self.weights = [x for x in layer.trainable_weights if id(x) not in kept]
        self.seconds = 0.0
        self._first = [x.numpy() for x in self.weights]
        self._copy = _shared_copy(layer, self.weights, copies)
        self._optimizer = keras.optimizers.Adam(global_clipnorm=CLIP_NORM)
        self._optimizer.build(self.weights)
        self.sums = np.zeros(3)

    def measure(self, *call):
        """Adds the sums of a call, given as `Inputs`, positions and target outputs."""
        self.sums += self._copy.of(self.layer).sums(*call)

    def train(self, *call, learning_rate):
        """Takes one step of Adam, for one call as in `measure`."""
        start = time.perf_counter()
        self._optimizer.learning_rate.assign(learning_rate)
        gradients = self._copy.of(self.layer).gradients(*call)
        # so that their norm is float32 even if kernels are bfloat16
        gradients = [tf.cast(gradient, tf.float32) for gradient in gradients]
        self._optimizer.apply(gradients, self.weights)
        self.seconds += time.perf_counter() - start

    def give_up(self):
        """Restores the initial weights of the layer."""
        for weight, value in zip(self.weights, self._first):
            weight.assign(value)


def _shared_copy(layer, weights, copies):
    """Returns the `SharedCopy` for layers like this one that train the same weights."""
    wanted = {id(weight) for weight in weights}
    indices = [i for i, x in enumerate(layer.weights) if id(x) in wanted]
    without_name = {**layer.get_config(), "name": None, "seed": None}
    shapes = [(tuple(x.shape), str(x.dtype)) for x in layer.weights]
    build = layer.get_build_config()
    kind = type(layer), json.dumps([without_name, build, shapes, indices], default=str)
    if kind not in copies:
        copy = type(layer).from_config(layer.get_config())
        copy.build_from_config(build)
        copies[kind] = SharedCopy(copy, indices)
    return copies[kind]


class SharedCopy:
    """A layer that computes for all layers of equal config, so that it compiles once.

    `sums` and `gradients` are compiled; `of` sets the weights that they compute with.
    Gradients are of the weights at `indices`.
    """

    def __init__(self, layer, indices):
        self._layer = layer
        self._trained = [layer.weights[index] for index in indices]
        self.sums = tf.function(self._sums, autograph=False)
        self.gradients = tf.function(self._gradients, autograph=False)

    def of(self, layer):
        """Returns this copy, with the weights of a layer."""
        for own, given in zip(self._layer.weights, layer.weights, strict=True):
            own.assign(given)
        return self

    def _gradients(self, *call):
        """Returns gradients of squared differences divided by squared targets."""
        with tf.GradientTape() as tape:
            differences, wanted, _ = tf.unstack(self._sums(*call))
            loss = tf.math.divide_no_nan(differences, wanted)
        variables = [weight.value for weight in self._trained]
        # gains have no gradient if the window covers all keys
        return tape.gradient(loss, variables, unconnected_gradients="zero")

    def _sums(self, inputs, positions, wanted):
        """Returns sums over tokens of squared differences, squared targets, and 1."""
        layer = self._layer
        names = "query", "key", "value"
        heads = [layer.project(x, getattr(inputs, x), positions) for x in names]
        # without dropout, compiled as in training
        attended, _ = layer.attend(*heads, inputs.visible, training=True)
        output = tf.cast(layer.write(attended, inputs.query_mask), tf.float32)
        wanted = tf.ensure_shape(tf.cast(wanted, tf.float32), output.shape)
        axis = range(len(inputs.query.shape) - 1, len(output.shape))
        squares = [tf.reduce_sum(x**2, axis) for x in (output - wanted, wanted)]
        counted = tf.stack([*squares, tf.ones_like(squares[0])])
        if inputs.query_mask is not None:
            counted = tf.where(inputs.query_mask, counted, 0.0)
        return tf.reduce_sum(counted, range(1, len(counted.shape)))
