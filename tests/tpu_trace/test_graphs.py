"""Checks of traced programs find the operations and inputs that they look for."""

import keras
import pytest
import tensorflow as tf

from tests.tpu_trace import graphs, pretended_tpu


def graph_of_one_step(model, strategy):
    """Returns the graph that trains a model from 3 numbers to 1."""
    dataset = tf.data.Dataset.from_tensors((tf.zeros((2, 3)), tf.zeros((2, 1))))
    model.make_train_function()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    return graphs.run_by(model.train_function, iterator)


def printed(x):
    tf.print(x)
    return x


def computed_in_python(x):
    y = tf.py_function(lambda x: 2 * x, [x], x.dtype)
    return tf.ensure_shape(y, x.shape)


@pytest.mark.parametrize(
    ("function", "bad_ops"),
    [(printed, {"PrintV2", "StringFormat"}), (computed_in_python, {"EagerPyFunc"})],
)
def test_an_op_that_tpus_lack_is_found(function, bad_ops):
    strategy = pretended_tpu.strategy(2)
    with strategy.scope():
        layers = [
            keras.Input((3,)),
            keras.layers.Lambda(function),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
    ops = graphs.cluster_ops(graph_of_one_step(model, strategy))
    assert graphs.without_tpu_kernel(ops) == bad_ops


def test_several_steps_leave_replicas_of_other_strategies_with_an_unfed_input():
    """Keras issue 19246. After a fix, the example can stop refusing them."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2)
    assert graphs.unfed_inputs(graph_of_one_step(model, strategy))
