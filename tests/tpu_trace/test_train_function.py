"""Programs of training under TPUStrategy only have ops that TPUs run.

The tests trace small models, and run nothing. `make tpu-check` compiles full ones.
"""

import dataclasses

import keras
import pytest
import tensorflow as tf

from benchmarks.tpu import table
from benchmarks.tpu.slices import SLICES, SLICES_OF_SEQUENCES
from examples.imagenet64 import data, train
from examples.imagenet64 import model as image_model
from keras_performer import PerformerLM
from keras_performer.layers import LocalAttention
from tests.tpu_trace import graphs, pretended_tpu

# One replica, and several. Other configurations differ only in the number of replicas
# and the batch size.
TRACED = ["v5e-4", pytest.param("v5e-1", marks=pytest.mark.slow)]
SMALL = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_random_features": 8,
}


def load(name, **changes):
    return dataclasses.replace(table.read(name), **SMALL, **changes)


def compiled_model(config, strategy):
    """Compiles like `train.main`; makes the optimizer's variables as `fit` does."""
    keras.config.set_dtype_policy(config.dtype_policy)
    with strategy.scope():
        model = image_model.make(config)
        train.compile_model(model, config)
        model.optimizer.build(model.trainable_variables)
    return model


def data_iterators(config, strategy):
    """Returns training and evaluation data of the run, with other images."""
    some = data.load(dataclasses.replace(config, data_dir=None, batch_size=1))
    images = dataclasses.replace(some, batch_size=config.batch_size)
    training = strategy.distribute_datasets_from_function(
        lambda context: train.training_sequences(images, config, context)
    )
    held_out = images.held_out_batches.map(image_model.shift)
    return iter(training), iter(strategy.experimental_distribute_dataset(held_out))


def traced(model, config, strategy):
    """Returns the graphs that `fit`, `evaluate` and `predict` run."""
    training, held_out = data_iterators(config, strategy)
    replicas = strategy.num_replicas_in_sync
    shape = config.batch_size // replicas, image_model.LENGTH
    for iterator in training, held_out:
        specs = tf.nest.flatten(iterator.element_spec, expand_composites=True)
        assert [spec.shape for spec in specs] == [shape] * (2 * replicas)
    model.make_train_function()
    model.make_test_function()
    model.make_predict_function()
    inputs = [next(training) for _ in range(config.steps_per_execution)]
    return (
        graphs.run_by(model.train_function, training),
        graphs.run_by(model.test_function, held_out),
        model.predict_function.get_concrete_function(inputs).graph,
    )


def check(config, num_replicas):
    """Traces and checks all programs; returns the graph of the train function."""
    strategy = pretended_tpu.strategy(num_replicas)
    model = compiled_model(config, strategy)
    assert model.jit_compile is False  # TPUStrategy compiles by itself; True fails
    programs = traced(model, config, strategy)
    all_ops = [graphs.cluster_ops(program) for program in programs]
    for ops in all_ops:
        assert ops["While"] + ops["StatelessWhile"]  # loops over chunks
        assert not graphs.without_tpu_kernel(ops)
    # each gradient is summed over replicas twice: by Keras, and before for clipping
    in_training = len(model.trainable_variables) * (2 if num_replicas > 1 else 1)
    sums = [ops["CrossReplicaSum"] for ops in all_ops]
    assert sums == [in_training, 0, 0]
    return programs[0]


def test_configurations_differ_in_sizes_and_places():
    on_tpu = {path.stem for path in table.CONFIGS.glob("*.yaml") if path.stem != "cpu"}
    assert {*SLICES, *SLICES_OF_SEQUENCES} == on_tpu
    alike = {"batch_size": 16, "output_dir": "out"}
    alike |= dict.fromkeys(("data_dir", "checkpoint_dir", "tensorboard_dir"))
    one, *others = (load(name, **alike) for name in SLICES)
    assert others == [one] * len(others)


@pytest.mark.parametrize("name", TRACED)
def test_tpus_have_all_ops(name):
    config = load(name)
    assert config.strategy == "tpu" and config.dropout > 0
    assert config.dtype_policy == "mixed_bfloat16"
    check(config, SLICES[name].replicas)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"recompute": "network", "likelihood": "mixture"},
        {"recompute": "block", "steps_per_execution": 4},
    ],
)
def test_tpus_have_all_ops_of_other_models_and_steps(options):
    """Tests recompute, the likelihood of the demo, and several steps per execution."""
    graph = check(load("v5e-4", **options), 4)
    assert not graphs.unfed_inputs(graph)


# -- Models with a window of near keys.


# long enough for loops over several blocks; the program does not run
BATCH_SIZE, LENGTH = 4, 12288
LOCAL = {"attention": LocalAttention(2, 8, sliding_window=64)}


@pytest.mark.parametrize(
    "options, causal",
    [
        ({"exact_window": 64, "feature_map": "taylor"}, True),
        (LOCAL, False),
        pytest.param(
            {"exact_window": 64, "num_random_features": 8},
            False,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"exact_window": 64, "recompute": "block"}, True, marks=pytest.mark.slow
        ),
    ],
)
def test_tpus_have_all_ops_of_windows(options, causal):
    keras.config.set_dtype_policy("mixed_bfloat16")
    strategy = pretended_tpu.strategy(2)
    sizes = dict(max_length=LENGTH, num_layers=1, num_heads=2, hidden_dim=16)
    with strategy.scope():
        model = PerformerLM(11, causal=causal, seed=0, **sizes, **options)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        model.build((BATCH_SIZE, LENGTH))
        model.optimizer.build(model.trainable_variables)
    tokens = tf.zeros((2 * BATCH_SIZE, LENGTH), tf.int32)
    dataset = tf.data.Dataset.from_tensors((tokens, tokens))
    model.make_train_function()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    ops = graphs.cluster_ops(graphs.run_by(model.train_function, iterator))
    assert not graphs.without_tpu_kernel(ops)
    # loops over blocks of the sequence, forward and backward
    assert ops["While"] + ops["StatelessWhile"] >= 2
    # every gradient is summed over replicas, also the gain's
    assert ops["CrossReplicaSum"] == len(model.trainable_variables)
    gains = [v for v in model.trainable_variables if v.name == "log_gain"]
    assert len(gains) == (options is not LOCAL)
