"""`jit_compile` of PerformerAttention: the same numbers, compiled where it says."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_performer import PerformerAttention
from keras_performer.layers import compiled

LENGTH = compiled.MIN_COMPILED_LENGTH


def layer(**options):
    options = {"num_heads": 2, "key_dim": 4, "num_random_features": 6, **options}
    return PerformerAttention(seed=1, **options)


def traced(attention, known=LENGTH, training=True):
    """Whether the graph of a call holds a function that is to be compiled."""
    attention.build((None, None, 3))
    spec = tf.TensorSpec((None, known, 3))
    graph = tf.function(lambda x: attention(x, training=training))
    graph = graph.get_concrete_function(spec).graph
    functions = graph.as_graph_def().library.function
    return any(function.attr["_XlaMustCompile"].b for function in functions)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_equals_plain(causal, masked):
    random = np.random.default_rng(2)
    x = tf.constant(random.standard_normal((2, 70, 3)), tf.float32)
    mask = tf.constant(random.random((2, 70)) < 0.7) if masked else None
    weight = random.standard_normal((2, 70, 3)).astype("float32")
    results = []
    for jit_compile in (True, False):
        attention = layer(jit_compile=jit_compile, causal=causal, chunk_size=16)
        keras.utils.set_random_seed(3)
        attention.build(x.shape)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = attention(x, query_mask=mask, training=True)
                loss = tf.reduce_sum(weight * output)
            return output, tape.gradient(loss, [x, *attention.trainable_variables])

        results.append(tf.nest.flatten(step(x)))
    for jitted, plain in zip(*results):
        scale = np.abs(plain).max()
        assert scale > 0
        np.testing.assert_allclose(jitted, plain, rtol=0, atol=3e-6 * scale)


def test_auto_compiles_long_training_steps_of_known_length_only():
    assert traced(layer())
    assert not traced(layer(), known=LENGTH - 1)
    assert not traced(layer(), known=None)
    assert not traced(layer(), training=False)
    assert not traced(layer(jit_compile=False))
    assert traced(layer(jit_compile=True), known=None, training=False)


def test_auto_leaves_eager_calls_and_strategies_alone():
    attention = layer()
    x = tf.zeros((1, LENGTH, 3))
    assert not compiled.should_compile("auto", x, x, True)  # eager
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        assert not traced(attention)


def test_layers_with_equal_options_share_what_is_compiled():
    options = {"jit_compile": True, "feature_map": "relu", "num_random_features": 5}
    before = compiled._compiled.cache_info().currsize
    stack = keras.Sequential([layer(**options) for _ in range(3)])
    stack(tf.ones((1, 7, 3)))
    assert compiled._compiled.cache_info().currsize == before + 1
    shared = compiled._compiled(layer(**options).feature_map, False, None)
    assert shared.experimental_get_tracing_count() == 1
    other = layer(**{**options, "feature_map": "elu"}).feature_map
    assert compiled._compiled(other, False, None) is not shared


def test_inside_a_compiled_function():
    attention = layer(jit_compile=True, causal=True)
    x = tf.random.stateless_normal((1, 33, 3), seed=(0, 4))
    plain = attention(x)
    inside = tf.function(attention, jit_compile=True)(x)
    np.testing.assert_allclose(inside, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_plain_model_trains_compiled_and_exports_plain(tmp_path):
    random = np.random.default_rng(5)
    x = random.standard_normal((6, LENGTH, 3)).astype("float32")
    y = random.standard_normal((6, LENGTH, 3)).astype("float32")
    losses = []
    for jit_compile in ("auto", False):
        keras.utils.set_random_seed(6)
        attention = layer(jit_compile=jit_compile, causal=True)
        model = keras.Sequential([keras.Input((LENGTH, 3)), attention])
        model.compile("adam", "mse")
        # 4 and then 2 rows: two batch sizes of one length
        history = model.fit(x, y, batch_size=4, epochs=3, verbose=0, shuffle=False)
        losses.append(history.history["loss"])
        if jit_compile == "auto":
            model.export(tmp_path / "model", verbose=False)
            predicted = model.predict(x, verbose=0)
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][2] < losses[0][0]
    loaded = tf.saved_model.load(tmp_path / "model")
    functions = loaded.signatures["serve"].graph.as_graph_def().library.function
    assert not any(function.attr["_XlaMustCompile"].b for function in functions)
    np.testing.assert_allclose(loaded.serve(x), predicted, rtol=1e-4, atol=1e-5)


def test_a_wrong_value_is_refused():
    with pytest.raises(ValueError, match='jit_compile must be True, False or "auto"'):
        layer(jit_compile="always")
