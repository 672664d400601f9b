"""`jit_compile` of PerformerAttention: equal outputs, compiled as documented."""

import functools
import os

import keras
import pytest
import tensorflow as tf
from tensorflow.python.grappler.tf_optimizer import OptimizeGraph

from keras_performer.feature_maps import SoftmaxFeatures
from keras_performer.layers import LocalAttention, performer
from keras_performer.zoo import LongformerAttention
from tests.layers.inputs import output_and_gradients, small_layer

LENGTH = performer.MIN_COMPILED_LENGTH


def compiled_functions(graph):
    """Returns the names of a graph's functions that XLA compiles."""
    functions = graph.as_graph_def().library.function
    return [f.signature.name for f in functions if f.attr["_XlaMustCompile"].b]


def traced(layer, known=LENGTH, training=True, packed=False):
    """Returns `True` if the graph of a call has a function that XLA compiles."""
    layer.build((None, None, 3))
    spec = tf.TensorSpec((None, known, 3))

    def call(x):
        segments = tf.zeros(tf.shape(x)[:2], tf.int32) if packed else None
        return layer(x, training=training, segment_ids=segments)

    graph = tf.function(call)
    return bool(compiled_functions(graph.get_concrete_function(spec).graph))


def test_auto_compiles_long_training_steps_of_known_length_only(two_threads):
    assert traced(small_layer())
    assert not traced(small_layer(), known=LENGTH - 1)
    assert not traced(small_layer(), known=None)
    assert not traced(small_layer(), training=False)
    assert traced(small_layer(jit_compile=True), known=None, training=False)


def test_segments_count_as_causal_loops(monkeypatch, two_threads):
    assert traced(small_layer(), packed=True)
    monkeypatch.setattr(tf, "__version__", "2.20.0")
    assert traced(small_layer()) and not traced(small_layer(), packed=True)


@pytest.mark.parametrize("gpus", [[], ["GPU:0"]])
def test_auto_compiles_a_window_alone_on_gpus(monkeypatch, two_threads, gpus):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    for kind in LocalAttention, LongformerAttention:
        assert traced(kind(2, 4, sliding_window=8)) == bool(gpus)


@pytest.mark.parametrize(
    "causal, threads, version, gpus, expected",
    [
        (False, 1, "2.20.0", [], True),
        (False, 4, "2.20.0", [], True),
        (False, 5, "2.20.0", [], False),
        (False, 16, "2.20.0", ["GPU:0"], True),
        (True, 2, "2.20.0", [], False),
        (True, 2, "2.21.0-rc1", [], True),
        (True, 5, "3.0.0", [], False),
        (True, 2, "3.0.0", [], True),
        (True, 2, "2.19.1", ["GPU:0"], True),
    ],
)
def test_auto_compiles_where_it_pays(
    monkeypatch, causal, threads, version, gpus, expected
):
    """Compiles on few threads or a GPU; causal on CPUs from TensorFlow 2.21 on."""
    monkeypatch.setattr(
        tf.config.threading, "get_intra_op_parallelism_threads", lambda: threads
    )
    monkeypatch.setattr(tf, "__version__", version)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: gpus)
    with tf.Graph().as_default():
        x = tf.zeros((1, LENGTH, 3))
        decided = functools.partial(performer.should_compile, query=x, key=x)
        given = dict(training=True, in_order=causal)
        assert decided("auto", **given) == expected
        assert decided(True, **given) and not decided(False, **given)
        assert not decided("auto", training=None, in_order=causal)
        assert decided("auto", training=True, in_order=None) == bool(gpus)
        with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
            assert not decided("auto", **given)
    monkeypatch.setattr(performer, "pays_on_cpu", lambda in_order: True)
    assert not performer.should_compile("auto", x, x, True, in_order=False)


def test_threads_are_the_cores_at_hand_unless_set(monkeypatch):
    threading = tf.config.threading
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: 5)
    assert performer.cpu_threads() == 5
    monkeypatch.setattr(threading, "get_intra_op_parallelism_threads", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 6}, raising=False)
    assert performer.cpu_threads() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert performer.cpu_threads() == 7


def graph_of(layers, trained):
    """Returns the graph of a stack of layers, with gradients if it is trained."""
    stack = keras.Sequential(layers)
    stack.build((None, 7, 3))

    def step(x):
        return output_and_gradients(stack, [x], training=True) if trained else stack(x)

    return tf.function(step).get_concrete_function(tf.TensorSpec((2, 7, 3))).graph


def test_layers_with_equal_options_share_what_is_compiled():
    def number(*all_options):
        layers = [small_layer(jit_compile=True, **options) for options in all_options]
        return len(compiled_functions(graph_of(layers, trained=False)))

    relu = {"feature_map": "relu"}
    # one function for the keys, one for the queries; causal attention has one
    assert number(relu, relu, relu) == 2
    assert number(relu, {"feature_map": "elu"}, {**relu, "causal": True}) == 5


def test_training_compiles_four_passes_and_copies_no_inputs():
    layers = [small_layer(jit_compile=True, feature_map="relu") for _ in range(2)]
    graph = graph_of(layers, trained=True)
    library = graph.as_graph_def().library.function
    names = compiled_functions(graph)
    signatures = [f.signature for f in library if f.signature.name in names]
    # stabilizer and sums; attended values and normalizers; gradients of key and value,
    # and of query and sums
    assert sorted(len(s.output_arg) for s in signatures) == [2, 2, 2, 2]


def test_functions_are_shared_where_a_tape_records():
    """Sharing starts training sooner, but LiteRT cannot convert shared loops."""
    layers = [small_layer(jit_compile=False, causal=True)] * 2

    def inline(trained):
        library = graph_of(layers, trained).as_graph_def().library.function
        return [not f.attr["_noinline"].b for f in library if "run" in f.signature.name]

    assert inline(trained=False) == []
    assert inline(trained=True) == [False, False]  # forward and backward


def test_tensorflow_optimizes_one_function_for_all_layers():
    """Constant arguments would make it optimize a copy of a function for each call."""
    options = dict(jit_compile=False, causal=True, exact_window=3)
    graph = graph_of([small_layer(**options) for _ in range(3)], trained=True)
    graph_def = graph.as_graph_def()
    exported = tf.compat.v1.train.export_meta_graph(graph_def=graph_def, graph=graph)
    for output in graph.outputs:
        exported.signature_def["step"].outputs[output.name].name = output.name
    optimized = OptimizeGraph(tf.compat.v1.ConfigProto(), exported)
    calls = [x.attr["f"].func.name for x in optimized.node if "Partitioned" in x.op]
    assert len(calls) == 6
    assert len(set(calls)) == 2  # forward and backward


def test_a_feature_map_that_cannot_be_shared_is_refused():
    class Weighted(SoftmaxFeatures):
        def __init__(self):
            super().__init__()
            self.weights = [1.0]

    with pytest.raises(TypeError, match="hashable.*jit_compile=False.*Weighted"):
        small_layer(feature_map=Weighted())
    small_layer(feature_map=Weighted(), jit_compile=False)
