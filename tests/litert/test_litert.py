"""LiteRT's interpreters give the model's numbers, with only their own operations.

The tests use TensorFlow's interpreter, and the separate package that phones have.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import keras_performer
from keras_performer import ops
from tests.layers.inputs import language_model
from tests.models.test_export import with_every_state

pytestmark = pytest.mark.slow

# Each with its enum of kernels, to choose kernels without XNNPACK.
INTERPRETERS = {
    tf.lite.Interpreter: tf.lite.experimental.OpResolverType,
    Interpreter: OpResolverType,
}

# Several blocks of causal attention, with padding in the last one.
LENGTH = 600
IDS = np.random.default_rng(0).integers(1, 11, (2, LENGTH)).astype("int32")
PROMPT = LENGTH - 40


def runners(folder, *names, xnnpack=True):
    """Yields functions of a SavedModel's signatures, in each interpreter.

    Conversion fails unless LiteRT's own operations suffice. It takes signatures one by
    one, as from several the converter would keep only `serve`, by another name.

    Args:
        folder: the SavedModel.
        *names: names of signatures.
        xnnpack: bool, use XNNPACK as the interpreter does by default.
    """
    files = []
    for name in names:
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=[name]
        )
        files.append(converter.convert())
    for make, kinds in INTERPRETERS.items():
        own = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        options = {"experimental_op_resolver_type": kinds.AUTO if xnnpack else own}
        yield [
            make(model_content=file, **options).get_signature_runner(name)
            for name, file in zip(names, files)
        ]


def plain():
    return language_model(max_length=LENGTH, num_random_features=6, seed=1)


def by_default():
    """Returns a model with window and gates; its two blocks must not share a loop."""
    sizes = dict(num_layers=2, num_heads=2, hidden_dim=8, max_length=LENGTH)
    return keras_performer.PerformerLM(11, num_random_features=6, seed=1, **sizes)


def every_state():
    return with_every_state(max_length=LENGTH, num_layers=1)


@pytest.mark.parametrize(
    ("make", "xnnpack"), [(plain, True), (by_default, False), (every_state, False)]
)
def test_prompt_and_steps_are_the_model_on_the_whole_sequence(make, xnnpack):
    """XNNPACK gives wrong states with a window: docs/save.md."""
    model = make()
    model.export("exported", verbose=False)
    expected = model(IDS).numpy()
    names = "serve", "prefill", "decode"
    # batch size and length are unknown before this call
    for serve, prefill, decode in runners("exported", *names, xnnpack=xnnpack):
        (tokens,) = serve.get_input_details()
        (logits,) = serve(**{tokens: IDS}).values()
        np.testing.assert_allclose(logits, expected, atol=1e-5)
        state = prefill(tokens=IDS[:, :PROMPT])
        logits = [state.pop("logits")]
        for t in range(PROMPT, LENGTH):
            state = decode(tokens=IDS[:, t : t + 1], **state)
            logits.append(state.pop("logits"))
        np.testing.assert_allclose(
            np.stack(logits, axis=1), expected[:, PROMPT - 1 :], atol=1e-5
        )


def test_a_classifier_with_padding():
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(11, 8, mask_zero=True)(tokens)
    attention = keras_performer.PerformerAttention(2, 4, num_random_features=6, seed=1)
    x = keras.layers.Add()([x, attention(x)])
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(tokens, keras.layers.Dense(3)(x))
    model.export("exported", verbose=False)
    ids = np.where(np.arange(LENGTH) < [[LENGTH], [70]], IDS, 0)
    for (serve,) in runners("exported", "serve"):
        (name,) = serve.get_input_details()
        (outputs,) = serve(**{name: ids}).values()
        np.testing.assert_allclose(outputs, model(ids), atol=1e-5)
        (alone,) = serve(**{name: ids[1:, :70]}).values()
        np.testing.assert_allclose(outputs[1:], alone, atol=1e-5)


@pytest.mark.parametrize("std", [1.0, 8.0, 60.0])
def test_keys_that_dwarf_others_take_the_same_form(std):
    """Blocks use log-sum-exp for standard deviation 8, single tokens for 60."""
    kernel = ops.ExponentialKernel(
        ops.orthogonal_gaussian_matrix(6, 4, seed=(0, 1)), hyperbolic=True
    )

    @tf.function(input_signature=[tf.TensorSpec((None, None, 2, 4))] * 3)
    def attend(query, key, value):
        return ops.causal_attention(query, key, value, kernel, chunk_size=8)[0]

    tf.saved_model.save(tf.Module(), "exported", {"attend": attend})
    rng = np.random.default_rng(2)
    query, key, value = rng.normal(size=(3, 1, 70, 2, 4)).astype("float32")
    inputs = dict(query=query, key=std * key, value=value)
    for (run,) in runners("exported", "attend"):
        (outputs,) = run(**inputs).values()
        np.testing.assert_allclose(outputs, attend(**inputs), atol=3e-5)
