"""Models with a window of near keys under TPUStrategy: only ops that TPUs can run."""

import keras
import pytest
import tensorflow as tf

from keras_performer import PerformerLM
from keras_performer.layers import LocalAttention
from tests.tpu_trace import graphs, pretended_tpu

# long enough that the loops go over several blocks; nothing is run
BATCH_SIZE, LENGTH = 4, 12288


def local(causal):
    return {"attention": LocalAttention(2, 8, sliding_window=64, causal=causal)}


MODELS = {
    "softmax": lambda causal: {"exact_window": 64, "num_random_features": 8},
    "taylor": lambda causal: {
        "exact_window": 64,
        "feature_map": "taylor",
        "num_random_features": None,
    },
    "recomputed": lambda causal: {"exact_window": 64, "recompute": "block"},
    "local": local,
}
CASES = [
    ("taylor", True),
    ("local", False),
    pytest.param("softmax", False, marks=pytest.mark.slow),
    pytest.param("recomputed", True, marks=pytest.mark.slow),
]


def traced(name, causal, num_replicas=2):
    """The graph of the training step, and the model."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    strategy = pretended_tpu.strategy(num_replicas)
    with strategy.scope():
        options = MODELS[name](causal)
        model = PerformerLM(
            11,
            max_length=LENGTH,
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            causal=causal,
            seed=0,
            **options,
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        model.build((BATCH_SIZE, LENGTH))
        model.optimizer.build(model.trainable_variables)
    tokens = tf.zeros((num_replicas * BATCH_SIZE, LENGTH), tf.int32)
    dataset = tf.data.Dataset.from_tensors((tokens, tokens))
    model.make_train_function()
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    return graphs.run_by(model.train_function, iterator), model


@pytest.mark.parametrize("name, causal", CASES)
def test_tpus_have_all_ops(name, causal):
    graph, model = traced(name, causal)
    ops = graphs.cluster_ops(graph)
    assert not graphs.without_tpu_kernel(ops)
    # over blocks of the sequence, forward and backward
    assert ops["While"] + ops["StatelessWhile"] >= 2
    # every gradient is summed over the replicas, that of the gain too
    assert ops["CrossReplicaSum"] == len(model.trainable_variables)
    gains = [v for v in model.trainable_variables if v.name == "log_gain"]
    assert len(gains) == (name != "local")
