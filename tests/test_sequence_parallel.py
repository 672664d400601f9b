"""Slices of sequences on several replicas give the numbers of one device."""

import itertools
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.tpu import steps
from benchmarks.tpu.replicas import Replicas
from keras_performer import (
    PerformerAttention,
    PerformerDecoder,
    PerformerEncoder,
    PerformerLM,
    distribution,
    layers,
    sequence_parallel,
    zoo,
)
from keras_performer.ops import slices

WIDTH, TOKENS, BATCH = 8, 12, 2  # tokens of a slice


def replicas(count):
    devices = [f"CPU:{index}" for index in range(count)]
    return sequence_parallel(tf.distribute.MirroredStrategy(devices))


def inputs(count, packed):
    """Returns whole sequences, a mask and, if packed, ids of segments."""
    rng = np.random.default_rng(0)
    shape = BATCH, TOKENS * count
    given = {"x": rng.normal(size=(*shape, WIDTH)), "mask": rng.random(shape) > 0.2}
    if packed:  # some segments go on in the next slice, one goes on over three
        starts = rng.random(shape) < 0.08
        starts[:, TOKENS] = True
        starts[0, TOKENS + 1 : 3 * TOKENS] = False
        given["ids"] = np.cumsum(starts, 1)
    return given


def call(layer, given):
    """Calls a layer on a dict from `inputs`."""
    named = {"segment_ids": given["ids"]} if "ids" in given else {}
    if not isinstance(layer, layers.PerformerBlock):
        named["key_mask"] = given["mask"]
    else:
        named["mask"] = given["mask"]
    return layer(given["x"], training=True, **named)


def outputs_and_gradients(layer, given, wanted):
    with tf.GradientTape() as tape:
        tape.watch(given["x"])
        output = call(layer, given)
        loss = tf.reduce_sum(tf.cast(output, wanted.dtype) * wanted)
    sources = [given["x"], *(v.value for v in layer.trainable_variables)]
    dx, *gradients = tape.gradient(loss, sources)
    return output, dx, [tf.convert_to_tensor(d) for d in gradients]


def on_slices(strategy, layer, given, wanted):
    """Returns outputs, gradients of inputs, and summed gradients of weights."""
    dataset = tf.data.Dataset.from_tensors((given, wanted))
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))

    def run(given, wanted):
        output, dx, gradients = outputs_and_gradients(layer, given, wanted)
        context = tf.distribute.get_replica_context()
        return output, dx, [context.all_reduce("SUM", d) for d in gradients]

    output, dx, gradients = tf.function(lambda *x: strategy.run(run, x))(*batch)
    local = strategy.experimental_local_results
    whole = [np.concatenate(local(x), 1) for x in (output, dx)]
    return *whole, [local(d)[0].numpy() for d in gradients]


def compare(make, count, packed=False, policy="float64"):
    """Returns relative errors of outputs, input gradients and weight gradients."""
    keras.config.set_dtype_policy(policy)
    given = {k: tf.constant(v) for k, v in inputs(count, packed).items()}
    wanted = tf.constant(np.random.default_rng(1).normal(size=given["x"].shape))
    alone = make()
    output, dx, gradients = outputs_and_gradients(alone, given, wanted)
    strategy = replicas(count)
    with strategy.scope():
        layer = make()
        layer.build(given["x"].shape)
    layer.set_weights(alone.get_weights())
    found, dfound, summed = on_slices(strategy, layer, given, wanted)
    errors = {"output": error(found, output), "input": error(dfound, dx)}
    for variable, ours, theirs in zip(alone.trainable_variables, summed, gradients):
        errors[variable.name, variable.dtype] = error(ours, theirs.numpy())
    return errors


def error(found, wanted):
    """Largest difference, relative to the largest number, or to 1e-6 if smaller."""
    wanted = np.asarray(wanted)
    return np.max(np.abs(found - wanted)) / max(np.max(np.abs(wanted)), 1e-6)


def assert_equal(errors):
    for name, found in errors.items():
        # gates and gains are float32 weights
        limit = 2e-6 if name[1] == "float32" else 1e-11
        assert found < limit, (name, found)


ATTENTIONS = {
    "softmax": {},
    "window": {"exact_window": 5, "initial_log_gain": 0.5},
    "gate": {"forget_gate": True},
    "window and gate": {"exact_window": 5, "forget_gate": True, "rotary": True},
    "window as long as a slice": {"exact_window": TOKENS},
    "relu and gate": {
        "feature_map": "relu",
        "num_random_features": None,
        "forget_gate": True,
    },
    "taylor": {"feature_map": "taylor", "rotary": True, "qk_norm": True},
    "local": {"sliding_window": 5, "rotary": True},
    "local and gate": {"sliding_window": 5, "forget_gate": True},
}


def attention(causal, **options):
    shared = dict(num_heads=4, key_dim=4, num_key_value_heads=2, seed=1)
    if "sliding_window" in options:
        return layers.LocalAttention(**shared, causal=causal, **options)
    return PerformerAttention(**shared, causal=causal, **options)


PACKED = ["softmax", "window and gate", "relu and gate", "local and gate"]


@pytest.mark.parametrize(
    ("name", "causal", "count", "packed"),
    [
        *itertools.product(ATTENTIONS, (True, False), [3], [False]),
        *itertools.product(PACKED, (True, False), [3], [True]),
        ("window and gate", True, 2, True),
        ("window and gate", False, 4, True),
    ],
)
def test_attention_has_the_numbers_of_one_device(name, causal, count, packed):
    options = ATTENTIONS[name]
    assert_equal(compare(lambda: attention(causal, **options), count, packed))


@pytest.mark.parametrize("causal", [True, False])
def test_a_block_with_a_convolution(causal):
    def make():
        inner = attention(causal, forget_gate=True)
        return layers.PerformerBlock(inner, 16, conv_kernel_size=4)

    assert_equal(compare(make, 3, packed=True))


def test_mixed_precision():
    """Keys are exchanged in bfloat16, states in float32."""
    options = ATTENTIONS["window and gate"]
    errors = compare(lambda: attention(True, **options), 2, policy="mixed_bfloat16")
    assert errors["output"] < 0.01  # bfloat16 rounds by 0.004
    assert max(errors.values()) < 0.03


def language_model(loss=None, jit_compile=False, **options):
    """Returns a compiled model; `loss` is a dict of options of the loss."""
    sizes = dict(num_layers=2, num_heads=2, hidden_dim=16, seed=1)
    model = PerformerLM(11, **sizes, **options)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **(loss or {}))
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit_compile)
    return model


CAUSAL = dict(exact_window=5, conv_kernel_size=4)
MODELS = {
    "default": CAUSAL,
    "bidirectional": dict(causal=False, position_embedding="learned", max_length=48),
    "recompute": {**CAUSAL, "recompute": "block"},
    "recompute bidirectional": dict(causal=False, recompute="block"),
}


ALL_REDUCE = re.compile(
    r'"stablehlo.all_reduce".*?\}\) : \(tensor<((?:\d+x)*)[a-z]+\d+>\)', flags=re.DOTALL
)


@pytest.mark.parametrize("options", [CAUSAL, {"causal": False}], ids=str)
def test_a_lowered_step_exchanges_as_much_for_any_length(options, monkeypatch):
    def text(function, *specs):
        compiled = tf.function(function, jit_compile=True, autograph=False)
        lowered = compiled.experimental_get_compiler_ir(*specs)
        return lowered(stage="stablehlo", platform_name="CPU")

    def numbers(length):
        strategy = Replicas(4)
        slices.cut_for(strategy)
        with strategy.scope():
            model = language_model(**options)
        shapes = ALL_REDUCE.findall(steps.lower_step(model, strategy, 1, length))
        exchanged = [math.prod(map(int, re.findall(r"\d+", x))) for x in shapes]
        return len(exchanged), sum(exchanged), model.count_params()

    monkeypatch.setattr(steps, "lower", text)
    count, exchanged, weights = numbers(64)
    assert numbers(256) == (count, exchanged, weights)
    # gradients of all weights, and beside them the states of both layers
    assert exchanged > weights + 2 * 4 * 2 * 256 * 8


@pytest.mark.slow
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_fit_does_what_one_device_does(options):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 11, (2, 4, 48))
    weight = (rng.random((4, 48)) > 0.3).astype("float32")
    strategy, alone = replicas(2), language_model(**options)
    with strategy.scope():
        model = language_model(**options)
    first = alone.get_weights()
    model.set_weights(first)
    given = dict(batch_size=2, shuffle=False, epochs=2, verbose=0, sample_weight=weight)
    ours, theirs = (m.fit(x, y, **given).history for m in (model, alone))
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-6)
    for variable, before, one, all_ in zip(
        alone.trainable_variables, first, alone.get_weights(), model.get_weights()
    ):
        change = np.max(np.abs(one - before))
        assert np.max(np.abs(one - all_)) < max(2e-4 * change, 1e-7), variable.path
    evaluated = [m.evaluate(x, y, batch_size=2, verbose=0) for m in (model, alone)]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-5)


def test_encoders_and_decoders_of_slices():
    keras.config.set_dtype_policy("float64")
    x, source = np.random.default_rng(0).normal(size=(2, 2, 24, WIDTH))
    strategy = replicas(2)

    def make():
        return PerformerEncoder(16, 2, seed=1), PerformerDecoder(16, 2, seed=2)

    def apply(made, x, source):
        encoder, decoder = made
        return decoder(x, encoder(source))

    alone = make()
    wanted = apply(alone, x, source)
    with strategy.scope():
        ours = make()
        ours[0].build(x.shape)
        ours[1].build(x.shape, x.shape)
    for layer, other in zip(ours, alone):
        layer.set_weights(other.get_weights())
    dataset = tf.data.Dataset.from_tensors((x, source))
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))
    run = tf.function(lambda *given: strategy.run(apply, (ours, *given)))
    found = strategy.experimental_local_results(run(*batch))
    np.testing.assert_allclose(np.concatenate(found, 1), wanted, atol=1e-12)


# -- Data.


def of_replicas(strategy, dataset):
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))
    local = strategy.experimental_local_results
    return tf.nest.map_structure(
        lambda x: [y.numpy().tolist() for y in local(x)],
        batch,
        expand_composites=False,
    )


def test_each_replica_gets_its_slice():
    x = np.arange(12).reshape(2, 6)
    data = tf.data.Dataset.from_tensor_slices(({"a": x}, x[..., None])).batch(2)
    found = of_replicas(replicas(3), data)
    slices_ = [x[:, start : start + 2].tolist() for start in (0, 2, 4)]
    assert found[0]["a"] == slices_
    assert np.array(found[1])[..., 0].tolist() == slices_
    # of a strategy that is cut already
    strategy = sequence_parallel(replicas(2))
    alone = of_replicas(strategy, tf.data.Dataset.from_tensors(x))
    assert alone == [x[:, :3].tolist(), x[:, 3:].tolist()]


def test_each_worker_gets_the_slices_of_its_replicas():
    x = np.arange(8).reshape(1, 8)
    context = tf.distribute.InputContext(2, 1, 4)
    given = tf.data.Dataset.from_tensors(x), replicas(4), context
    found = list(distribution.slices_of(*given).as_numpy_iterator())
    assert np.array(found).tolist() == [[[4, 5]], [[6, 7]]]


# -- What is refused.


def called(make, **call):
    """Returns a function that calls a layer on slices of 8 tokens."""

    def use(strategy):
        with strategy.scope():
            layer = make()
            layer.build((1, 8, WIDTH))
        data = tf.data.Dataset.from_tensors(tf.zeros((1, 16, WIDTH)))
        batch = next(iter(strategy.experimental_distribute_dataset(data)))
        return strategy.run(lambda x: layer(x, **call), (batch,))

    return use


def trained(name="fit", make=language_model, **options):
    """Returns a function that calls a method of a model on ids."""

    def use(strategy):
        with strategy.scope():
            model = make(**options)
        x = np.zeros((2, 32), "int32")
        getattr(model, name)(x, x)

    return use


def distributed(*data):
    """Returns a function that cuts a batch of data."""

    def use(strategy):
        dataset = tf.data.Dataset.from_tensors(data)
        strategy.experimental_distribute_dataset(dataset)

    return use


def ignoring_zeros():
    embedding = keras.layers.Embedding(11, 16, mask_zero=True)
    return language_model(embedding=embedding, exact_window=4)


def causal():
    return PerformerAttention(2, 4, causal=True)


class Doubled(PerformerAttention):
    def attend(self, *args, **kwargs):
        attended, state = super().attend(*args, **kwargs)
        return 2 * attended, state


IGNORES = dict(loss=dict(ignore_class=0), exact_window=4)
MEAN = dict(loss=dict(reduction="mean_with_sample_weight"), exact_window=4)
REFUSED = [
    (called(lambda: layers.ExactAttention(2, 4)), "whole sequence on one device"),
    (called(lambda: zoo.FourierMixing()), "mixes all tokens"),
    (called(lambda: PerformerAttention(2, 4, exact_window=9)), "as the window, 9"),
    (called(lambda: layers.LocalAttention(2, 4, sliding_window=9)), "as the window, 9"),
    (called(lambda: layers.PerformerBlock(None, 8, conv_kernel_size=10)), "- 1 = 9"),
    (called(lambda: Doubled(2, 4)), "Doubled needs the whole sequence"),
    (called(causal, return_state=True), "takes no return_state"),
    (called(causal, return_attention_scores=True), "takes no return_attention_scores"),
    (trained(recompute="network"), 'recompute must be "block" or None'),
    (
        trained(recompute="block", causal=False, exact_window=4),
        "without a window if bidirectional",
    ),
    (trained(recompute="block", dropout=0.1, conv_kernel_size=4), "needs dropout=0"),
    (trained("train_on_batch"), r"not train_on_batch.*shape \(2, 32\)"),
    (trained("test_on_batch"), r"not train_on_batch.*shape \(2, 32\)"),
    (trained(jit_compile=True), "Received: jit_compile=True"),
    (trained(**IGNORES), "divide by.*Received: .*ignore_class"),
    (trained(**MEAN), "divide by.*Received: .*reduction"),
    (trained(make=ignoring_zeros), "divide by.*Received: .*mask_zero"),
    (distributed(np.zeros((2, 4)), np.zeros((2, 1))), r"multiple of 2.*\(2, 1\)"),
    (distributed(np.zeros((2, 4)), np.zeros(2)), r"multiple of 2.*\(2,\)"),
    (
        distributed(tf.ragged.constant([[1, 2], [3]])),
        r"pad the sequences. Received: a RaggedTensor of shape \(2, None\)",
    ),
    (
        lambda strategy: strategy.distribute_datasets_from_function(lambda _: None),
        "experimental_distribute_dataset",
    ),
    (lambda _: sequence_parallel("mirrored"), "Received: strategy of type str"),
]


@pytest.mark.parametrize(("use", "message"), REFUSED)
def test_what_cannot_be_cut_is_refused(use, message):
    with pytest.raises(ValueError, match=message):
        use(replicas(2))


def unknown_length(*shape):
    return tf.data.Dataset.from_generator(
        lambda: iter([np.zeros(shape)]),
        output_signature=tf.TensorSpec((1, None, *shape[2:])),
    )


def test_lengths_that_are_unknown_are_checked_in_the_graph():
    strategy = replicas(2)
    cut = strategy.experimental_distribute_dataset
    with pytest.raises(tf.errors.InvalidArgumentError, match="multiple of 2"):
        next(iter(cut(unknown_length(1, 3))))
    with strategy.scope():
        layer = layers.PerformerBlock(None, 8, conv_kernel_size=4)
        layer.build((1, 8, WIDTH))
    batch = next(iter(cut(unknown_length(1, 4, WIDTH))))
    run = tf.function(lambda x: strategy.run(layer, (x,)))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="= 3"):
        run(batch)


def test_one_replica_and_other_strategies_hold_whole_sequences():
    other = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for strategy in (replicas(1), other):
        found = called(lambda: layers.ExactAttention(2, 4))(strategy)
        (first, *_) = strategy.experimental_local_results(found)
        assert first.shape[1:] == (16, WIDTH)
