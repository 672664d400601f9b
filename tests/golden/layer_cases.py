"""Outputs, gradients, scores, states and random features of `PerformerAttention`."""

import dataclasses
import itertools

import keras
import numpy as np
import tensorflow as tf

from keras_performer import PerformerAttention, feature_maps
from keras_performer.layers import ExactAttention
from tests.golden.numbers import normal, set_weights, state_arrays

BATCH, LENGTH, DIM = 2, 13, 7
# More tokens than one block of the loops holds.
TWO_BLOCKS = (1, 600, 3)


@dataclasses.dataclass(frozen=True)
class LayerCase:
    """A configuration of a layer.

    Attributes:
        options: dict of arguments of the layer, besides `SMALL`.
        shapes: tuple of the shapes of query, value and key, as many as are given.
        masks, call: dicts of masks and of further arguments of `call`.
        std: float, standard deviation of inputs, and so of queries and keys.
        graph: `None` for eager calls; "known" or "unknown" lengths in a `tf.function`.
        more: bool, also record scores and, with a state, calls in pieces.
        kind: class of the layer.
    """

    options: dict = dataclasses.field(default_factory=dict)
    shapes: tuple = ((BATCH, LENGTH, DIM),)
    masks: dict = dataclasses.field(default_factory=dict)
    call: dict = dataclasses.field(default_factory=dict)
    std: float = 1.0
    graph: str = None
    more: bool = True
    kind: type = PerformerAttention

    def numbers(self):
        """Returns a dict of arrays by name."""
        options = {**SMALL, **self.options}
        if self.kind is ExactAttention:
            del options["num_random_features"]
        layer = self.kind(**options, name="attention")
        layer.build(*self.shapes)
        set_weights(layer)
        inputs = self.inputs(layer.compute_dtype)
        numbers = self.value_and_gradients(layer, inputs)
        if not self.more:
            return numbers
        call = {**self.masks, **self.call, "return_attention_scores": True}
        numbers["scores"] = layer(*inputs, **call)[1]
        if layer.causal and layer.supports_state:
            numbers.update(self.in_pieces(layer, inputs))
        return numbers

    def inputs(self, compute_dtype):
        dtype = "float64" if compute_dtype == "float64" else "float32"
        names = ("query", "value", "key")
        return [
            tf.constant(normal(name, shape, self.std, dtype))
            for name, shape in zip(names, self.shapes)
        ]

    def value_and_gradients(self, layer, inputs):
        """Returns the output, and gradients for inputs and all trainable weights."""
        shape = layer.compute_output_shape(*self.shapes)

        def compute(*inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = layer(*inputs, **self.masks, **self.call)
                loss = _weighted_sum(output, shape)
            variables = [weight.value for weight in layer.trainable_weights]
            return output, *tape.gradient(loss, [*inputs, *variables])

        if self.graph:
            known = self.graph == "known"
            specs = [
                tf.TensorSpec(x.shape if known else (None, None, x.shape[2]), x.dtype)
                for x in inputs
            ]
            compute = tf.function(compute, input_signature=specs, autograph=False)
        output, *gradients = compute(*inputs)
        names = ["query", "value", "key"][: len(inputs)]
        names += [w.path.split("/", 1)[1] for w in layer.trainable_weights]
        named = {f"gradient {n}": g for n, g in zip(names, gradients)}
        losses = {"losses": tf.stack(layer.losses)} if layer.losses else {}
        return {"output": output, **named, **losses}

    def in_pieces(self, layer, inputs):
        """Computes the same sequence in three calls, the second with one token."""
        (x,), states, outputs = inputs, [None], []
        at = x.shape[1] // 2
        with tf.GradientTape() as tape:
            tape.watch(x)
            for here in (slice(at), slice(at, at + 1), slice(at + 1, None)):
                call = {name: mask[:, here] for name, mask in self.masks.items()}
                call.update(state=states[-1], return_state=True)
                output, state = layer(x[:, here], **call)
                outputs.append(output)
                states.append(state)
            output = tf.concat(outputs, 1)
            loss = _weighted_sum(output, output.shape)
        numbers = {
            "pieces output": output,
            "pieces gradient query": tape.gradient(loss, x),
        }
        for time, reached in (("early", states[1]), ("last", states[-1])):
            running_max, sums = state_arrays(reached)
            numbers[f"pieces {time} running_max"] = running_max
            numbers[f"pieces {time} sums"] = sums
        return numbers


def _weighted_sum(output, shape):
    """Returns a scalar with dense gradients, summed in float32 or float64.

    It needs the shape, as in a graph the output's shape may be unknown.
    """
    dtype = "float64" if output.dtype == "float64" else "float32"
    return tf.reduce_sum(tf.cast(output, dtype) * normal("output", shape, 1.0, dtype))


def _padding(first, last):
    """Returns two rows, one visible from `first` on, the other before `last`."""
    positions = np.arange(LENGTH)
    return np.stack([positions >= first, positions < last])


def _holes(length=LENGTH, hidden_row=False):
    """Hides every third key; in the second row other ones, or all."""
    positions = np.arange(length)
    second = np.zeros(length, bool) if hidden_row else positions % 3 != 0
    return np.stack([positions % 3 != 1, second])


def draws():
    """Returns three samples of each map's random features, with an incomplete block."""
    numbers, words = {}, ("hyperbolic", "regularized", "orthogonal")
    for chosen in itertools.product((False, True), repeat=3):
        map_ = feature_maps.SoftmaxFeatures(*chosen)
        name = " ".join(w for w, is_so in zip(words, chosen) if is_so) or "plain"
        for redraw in range(3):
            matrix = map_.draw(6, 4, tf.constant([3, redraw]))
            numbers[f"{name} {redraw}"] = matrix
    numbers["relu"] = feature_maps.get("relu").draw(5, 3, tf.constant([1, 2]))
    return numbers


SMALL = dict(num_heads=2, key_dim=4, num_random_features=10, seed=5)
CAUSAL = dict(causal=True)
GROUPED = dict(num_heads=4, num_key_value_heads=2)
CROSS = ((BATCH, LENGTH, DIM), (BATCH, 17, 5), (BATCH, 17, 6))


CASES = {
    # feature maps
    "softmax": LayerCase(),
    "softmax causal": LayerCase(CAUSAL),
    "favor+ causal": LayerCase(dict(feature_map="favor+", **CAUSAL)),
    "relu causal": LayerCase(dict(feature_map="relu", **CAUSAL)),
    "elu without projection": LayerCase(
        dict(feature_map="elu", num_random_features=None)
    ),
    # shapes
    "grouped heads": LayerCase(dict(value_dim=3, **GROUPED)),
    "grouped heads, causal": LayerCase(dict(value_dim=3, **GROUPED, **CAUSAL)),
    "one key-value head, output shape": LayerCase(
        dict(num_heads=3, num_key_value_heads=1, output_shape=(2, 3))
    ),
    "cross attention": LayerCase(shapes=CROSS),
    "chunks of grouped heads": LayerCase(
        dict(chunk_size=2, feature_map="favor+", **GROUPED, **CAUSAL)
    ),
    # several blocks
    "two blocks": LayerCase(shapes=(TWO_BLOCKS,), more=False),
    "two blocks, relu, grouped heads": LayerCase(
        dict(feature_map="relu", **GROUPED), shapes=(TWO_BLOCKS,), more=False
    ),
    "two blocks, causal, keys hidden": LayerCase(
        dict(chunk_size=50, **GROUPED, **CAUSAL),
        shapes=(TWO_BLOCKS,),
        masks=dict(key_mask=_holes(600)[:1]),
        more=False,
    ),
    # masks
    "padding, causal": LayerCase(CAUSAL, masks=dict(query_mask=_padding(4, 9))),
    "a row without keys": LayerCase(masks=dict(key_mask=_holes(hidden_row=True))),
    "a row without keys, causal": LayerCase(
        CAUSAL, masks=dict(key_mask=_holes(hidden_row=True))
    ),
    "every mask": LayerCase(
        GROUPED,
        shapes=CROSS,
        masks=dict(
            query_mask=_padding(2, 11),
            value_mask=_holes(17),
            key_mask=np.arange(17)[np.newaxis] < [[17], [12]],
            attention_mask=np.arange(17)[np.newaxis, np.newaxis] != [[[3]], [[5]]],
        ),
    ),
    "exact": LayerCase(
        dict(use_bias=False), masks=dict(key_mask=_padding(4, 9)), kind=ExactAttention
    ),
    "exact, length unknown": LayerCase(
        dict(use_bias=False, **CAUSAL),
        graph="unknown",
        more=False,
        kind=ExactAttention,
    ),
    # graphs; `test_compile.py` compares compiled ones with them
    "graph, lengths unknown": LayerCase(graph="unknown", more=False),
    "graph, lengths unknown, causal": LayerCase(
        dict(chunk_size=3, **CAUSAL), graph="unknown", more=False
    ),
    # operations around attention
    "dropout": LayerCase(dict(dropout=0.4), call=dict(training=True), more=False),
    "regularized": LayerCase(
        dict(
            kernel_regularizer=keras.regularizers.L2(0.1),
            bias_regularizer=keras.regularizers.L1(0.2),
            activity_regularizer=keras.regularizers.L2(0.3),
        ),
        more=False,
    ),
    # dtypes
    "float64": LayerCase(dict(dtype="float64", **GROUPED)),
    "float64, causal": LayerCase(dict(dtype="float64", chunk_size=4, **CAUSAL)),
    "bfloat16, causal": LayerCase(dict(dtype="mixed_bfloat16", **CAUSAL)),
    "float16": LayerCase(dict(dtype="mixed_float16")),
    # large queries and keys, for which causal attention uses log-sum-exp
    "large, causal": LayerCase(CAUSAL, std=6.0),
    "large, float64, causal": LayerCase(
        dict(dtype="float64", **GROUPED, **CAUSAL),
        masks=dict(key_mask=_holes()),
        std=6.0,
    ),
    "large, float64, two blocks, causal": LayerCase(
        dict(dtype="float64", num_heads=1, **CAUSAL),
        shapes=(TWO_BLOCKS,),
        std=6.0,
        graph="known",
        more=False,
    ),
}
