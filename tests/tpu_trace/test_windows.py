"""Models with a window of near keys under TPUStrategy only have ops that TPUs run."""

import keras
import pytest
import tensorflow as tf

from keras_performer import PerformerLM
from keras_performer.layers import LocalAttention
from tests.tpu_trace import graphs, pretended_tpu

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
def test_tpus_have_all_ops(options, causal):
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
