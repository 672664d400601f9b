"""Sequence parallelism: replicas hold slices of the same sequences."""

import numpy as np
import tensorflow as tf

from keras_performer.ops import slices


def sequence_parallel(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
    """Cuts every sequence into slices, one for each replica of a strategy.

    Use it for sequences that do not fit one device. The layers of a model that is made
    in the scope of the strategy then exchange states between slices, and `fit` cuts its
    data. Results, losses and gradients are the same as on one device.
    The size of an exchange does not depend on the length.

    All data must have the shape `(batch, length, ...)`, labels and `sample_weight`
    included, with a length that is a multiple of the number of replicas. Hide padding
    from the loss by `sample_weight`. A loss that divides by the number of tokens that
    count would do so in each slice: `PerformerLM` refuses `ignore_class`, masks such as
    those of `mask_zero`, and `reduction="mean_with_sample_weight"`; in other models
    avoid them. `predict` returns the slices of each batch, all first slices first. Do
    not use `jit_compile=True`.

    The guide *Very long sequences* lists the layers that support it. Layers of Keras
    that mix tokens or count positions, `clipnorm` and activity regularizers see one
    slice only.

    Args:
        strategy: a `tf.distribute.Strategy`, such as `MirroredStrategy` or
            `TPUStrategy`, before any model is made in its scope.

    Returns:
        The strategy.

    Raises:
        ValueError: if `strategy` is not a strategy. `fit` raises one for data that it
            cannot cut.

    Reference:
        Sun et al. 2025, LASP-2, arXiv 2502.07563.

    Example:

    >>> import keras, keras_performer
    >>> strategy = sequence_parallel(tf.distribute.MirroredStrategy(["CPU:0"]))
    >>> with strategy.scope():
    ...     model = keras_performer.PerformerLM(
    ...         256, num_layers=1, num_heads=2, hidden_dim=32)
    ...     model.compile("adam", "sparse_categorical_crossentropy")
    >>> tokens = tf.zeros((2, 128), "int32")
    >>> history = model.fit(tokens, tokens, batch_size=1, verbose=0)
    """
    if not isinstance(strategy, tf.distribute.Strategy):
        raise ValueError(
            "strategy must be a tf.distribute.Strategy, such as "
            "tf.distribute.MirroredStrategy(). Received: strategy of type "
            f"{type(strategy).__name__}"
        )

    if strategy.num_replicas_in_sync == 1 or slices.is_cut(strategy):
        return strategy
    distribute_from_function = strategy.distribute_datasets_from_function
    run_on_replicas = strategy.run

    def distribute(dataset, options=None):
        return distribute_from_function(
            lambda context: slices_of(dataset, strategy, context), options
        )

    def refuse(*args, **kwargs):
        raise ValueError(
            "With sequence_parallel the strategy cuts the data: pass whole sequences "
            "to fit, or a dataset to strategy.experimental_distribute_dataset. "
            "Received: a call of distribute_datasets_from_function"
        )

    def run(fn, args=(), kwargs=None, options=None):
        _check_cut((args, kwargs))
        return run_on_replicas(fn, args, kwargs, options)

    slices.cut_for(strategy)
    # Keras' `fit`, `evaluate` and `predict` call these methods with their batches
    strategy.experimental_distribute_dataset = distribute
    strategy.distribute_datasets_from_function = refuse
    strategy.run = run
    return strategy


def _check_cut(arguments):
    """Raises a `ValueError` for tensors that every replica would get whole."""
    for x in tf.nest.flatten(arguments):
        if isinstance(x, (tf.Tensor, np.ndarray)) and len(x.shape) > 1:
            raise ValueError(
                "With sequence_parallel replicas need slices of the data, but one "
                "tensor would go to all of them whole: use fit, evaluate and predict, "
                "not train_on_batch, test_on_batch and predict_on_batch; in a loop of "
                "your own use strategy.experimental_distribute_dataset. Received: a "
                f"tensor of shape {tuple(x.shape)}"
            )


def slices_of(dataset, strategy, context):
    """Returns a dataset of the slices for the replicas of one input pipeline."""
    count = strategy.num_replicas_in_sync
    of_pipeline = count // context.num_input_pipelines
    first = context.input_pipeline_id * of_pipeline
    is_tuple = isinstance(dataset.element_spec, tuple)

    dataset = _on_this_host(dataset)

    def cut(x):
        return _cut(x, count)[first : first + of_pipeline]

    def cut_all(*batch):
        found = tf.nest.map_structure(cut, batch)
        return found if is_tuple else found[0]

    return dataset.map(cut_all, tf.data.AUTOTUNE).unbatch().prefetch(of_pipeline)


def _on_this_host(dataset):
    """Returns a dataset for the host of the current device.

    The program of a TPU of several hosts makes a dataset on its own host, and the
    others need the graph of it, as TensorFlow's own strategies send it.
    """
    variant = tf.data.experimental.to_variant(dataset)
    here, there = (tf.DeviceSpec.from_string(x.device) for x in (tf.zeros(()), variant))
    if (here.job, here.task) == (there.job, there.task):
        return dataset
    with tf.device(variant.device):
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant, strip_device_assignment=True
        )
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def _cut(x, count):
    """Cuts `(B, L, ...)` into slices `(count, B, L / count, ...)`."""
    is_dense, rank = isinstance(x, tf.Tensor), x.shape.rank
    message = (
        "With sequence_parallel all data, labels and weights must have the shape "
        f"(batch, length, ...), with a length that is a multiple of {count}, the "
        "number of replicas: pad the sequences. Received: a "
        f"{'tensor' if is_dense else type(x).__name__} of shape {x.shape}"
    )
    if not is_dense or rank is None or rank < 2 or (x.shape[1] or 0) % count:
        raise ValueError(message)
    check = tf.debugging.assert_equal(tf.shape(x)[1] % count, 0, message)
    with tf.control_dependencies([check]):
        return tf.stack(tf.split(x, count, axis=1))
