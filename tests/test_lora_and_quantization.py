"""Models with LoRA and int8 train, are saved, copied and exported, and generate.

The tests combine kinds of models with changes to them, in both orders.
"""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from packaging.version import Version

from keras_performer import (
    PerformerAttention,
    PerformerDecoder,
    PerformerEncoder,
    generate,
)
from keras_performer.layers.keras_privates import all_layers
from tests.contract import relative_error
from tests.layers.inputs import language_model, normal

# the warning of layers without kernels, such as normalizations
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")

TOKENS = np.random.default_rng(0).integers(11, size=(3, 9)).astype("int32")
FEATURES = dict(num_random_features=6, seed=1)


def functional(layer_class, sizes, lengths=(None,)):
    inputs = [keras.Input((length, 8)) for length in lengths]
    return keras.Model(inputs, layer_class(*sizes, name="layer", **FEATURES)(*inputs))


MODELS = {
    "attention": lambda: functional(PerformerAttention, (2, 4)),
    # with keys beyond the window, so that the gain trains
    "lm": lambda: language_model(
        max_length=17, exact_window=3, forget_gate=True, **FEATURES
    ),
    "encoder": lambda: functional(PerformerEncoder, (12, 2)),
    "decoder": lambda: functional(PerformerDecoder, (12, 2), (None, None)),
}


def inputs_of(name):
    if name == "lm":
        return TOKENS
    x = [normal((3, 5, 8)), normal((3, 7, 8), 1)]
    return x if name == "decoder" else x[:1]  # a list, as old Keras needs


def lora(model):
    for layer in all_layers(model):
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2, lora_alpha=3)


CHANGES = ["lora", "int8", "lora then int8", "int8 then lora"]
# the first version that has int4 for embeddings, too
if Version(keras.__version__) >= Version("3.12"):
    CHANGES.append("int4 then lora")
# Nested layers have this change alone, as each case takes seconds.
BOTH = "int8 then lora"
PAIRS = [("attention", change) for change in CHANGES]
PAIRS += [(name, BOTH) for name in ("lm", "encoder", "decoder")]


def changed(name, change):
    model = MODELS[name]()
    for step in change.split(" then "):
        lora(model) if step == "lora" else model.quantize(step)
    return model


def train(model, name, steps):
    """Trains a few steps on the same data, and returns the loss before each."""
    x = inputs_of(name)
    targets = TOKENS[:, ::-1] if name == "lm" else normal((3, 5, 8), 2)
    losses = []
    for _ in range(steps):
        model.reset_metrics()  # old Keras returns the mean over all steps
        losses.append(float(model.train_on_batch(x, targets)))
    return losses


def compiled(model, name):
    loss = "mse"
    if name == "lm":
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # eager, as tracing would take longer than all steps
    model.compile(keras.optimizers.Adam(0.01), loss, run_eagerly=True)
    return model


# Weights of dense and embedding layers that do not train with LoRA or quantization,
# and the variables of random features.
NOT_TRAINED = {"g_idx", "projection_matrix", "redraw_count", "projection_seed"}
NOT_TRAINED |= {
    x + y for x in ("kernel", "embeddings") for y in ("", "_scale", "_zero")
}


@pytest.mark.parametrize(("name", "change"), PAIRS)
def test_it_trains_and_goes_on_where_it_was_saved(name, change):
    model, x = compiled(changed(name, change), name), inputs_of(name)
    before = [(weight, np.array(weight)) for weight in model.weights]
    losses = train(model, name, 4)
    assert losses[-1] < 0.99 * losses[0]
    for weight, old in before:
        # a gate is never quantized
        trains = "forget_gate" in weight.path or weight.name not in NOT_TRAINED
        assert (np.array(weight) != old).any() == trains, weight.path

    expected = model(x)
    model.save("model.keras")
    loaded = keras.saving.load_model("model.keras")
    assert [w.name for w in loaded.weights] == [w.name for w in model.weights]
    np.testing.assert_array_equal(loaded(x), expected)

    model.save_weights("model.weights.h5")
    other = changed(name, change)
    other.load_weights("model.weights.h5")
    np.testing.assert_array_equal(other(x), expected)
    # the copy gets all changes from its config
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    again = keras.saving.deserialize_keras_object(config)
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(x), expected)
    assert json.dumps(again.get_config()) == json.dumps(model.get_config())
    # the same weights train, from the same state of the optimizer
    assert train(loaded, name, 2) == pytest.approx(train(model, name, 2), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change"), [("attention", "lora"), ("lm", BOTH)])
def test_what_is_exported_gives_the_same_numbers(name, change):
    model, x = compiled(changed(name, change), name), inputs_of(name)
    train(model, name, 1)
    model.export("exported", verbose=False)
    served = tf.saved_model.load("exported")
    given = [tf.constant(one) for one in x] if isinstance(x, list) else tf.constant(x)
    assert relative_error(served.serve(given), model(x)) < 1e-5
    if name != "lm":
        return
    state = dict(served.signatures["prefill"](tokens=tf.constant(x[:, :-1])))
    del state["logits"]
    last = served.signatures["decode"](tokens=tf.constant(x[:, -1:]), **state)
    assert relative_error(last["logits"], model(x)[:, -1]) < 1e-5
    # a pass over the whole sequence predicts the generated tokens
    tokens = generate(model, TOKENS[:, :3], max_length=17, temperature=0)
    likeliest = np.argmax(model(tokens), -1)[:, 2:-1]
    np.testing.assert_array_equal(tokens[:, 3:], likeliest)


def test_int8_attention_is_rounded():
    layer, x = MODELS["attention"]().layers[-1], inputs_of("attention")[0]
    before = layer(x)
    for dense in all_layers(layer):
        if isinstance(dense, keras.layers.EinsumDense):
            dense.quantize("int8")
    # the error from rounding is about a hundredth, the size of a step
    assert 1e-4 < relative_error(layer(x), before) < 0.03


def test_float8_trains_is_saved_and_loaded():
    model, x = MODELS["attention"](), inputs_of("attention")
    model.quantize("float8")
    # in a graph, as Keras' own float8 layers cannot train eagerly
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    losses = train(model, "attention", 4)
    assert losses[-1] < 0.99 * losses[0]
    dense = model.layers[-1].query_dense
    assert float(np.max(dense.inputs_amax_history)) == pytest.approx(np.abs(x[0]).max())
    model.save("model.keras")
    loaded = keras.saving.load_model("model.keras")
    np.testing.assert_array_equal(loaded(x), model(x))
    expected = pytest.approx(train(model, "attention", 2), rel=1e-6)
    assert train(loaded, "attention", 2) == expected


@pytest.mark.parametrize("mode", ["gptq", "awq"])
def test_other_modes_are_refused(mode):
    layer = MODELS["attention"]().layers[-1].query_dense
    options, message = {}, "Invalid quantization mode"  # in Keras without this mode
    if config := getattr(keras.quantizers, f"{mode.upper()}Config", None):
        options["config"] = config(dataset=None, tokenizer=None)
        message = f"must be \"int8\", .*Received: mode='{mode}'"
    with pytest.raises(ValueError, match=message):
        layer.quantize(mode, **options)
