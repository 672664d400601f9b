"""Code that Keras 3 needs to train on several machines, and to resume after a crash.

Every machine runs the same program, with `TF_CONFIG` in its environment; the first
worker is the chief.
"""

import sys

import keras
import tensorflow as tf


class MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's strategy with a `reduce` that accepts the arguments of Keras 3.

    With TensorFlow's own class, `fit` and `evaluate` of Keras 3 fail: they reduce a
    batch, which is a tuple, and metrics, which are scalars, along `axis=0`. This class
    reduces each part of a tuple by itself, and a scalar along no axis.
    """

    def reduce(self, reduce_op, value, axis):
        reduce = super().reduce

        def reduce_part(part):
            is_scalar = self.experimental_local_results(part)[0].shape.rank == 0
            return reduce(reduce_op, part, axis=None if is_scalar else axis)

        return tf.nest.map_structure(reduce_part, value)


def is_chief(strategy):
    """Returns `True` if this process is the one that writes files."""
    return not (strategy.cluster_resolver and strategy.cluster_resolver.task_id)


def backup_and_restore(strategy, backup_dir):
    """Makes the callback that saves after each epoch and resumes after a crash.

    All workers read the same checkpoint, and the chief alone writes it, so every worker
    must be able to reach `backup_dir`. With separate folders, a worker that dies
    between two saves would resume at another step than the others.
    """
    writes = is_chief(strategy)
    return keras.callbacks.BackupAndRestore(
        backup_dir,
        save_freq="epoch" if writes else sys.maxsize,  # never
        double_checkpoint=True,  # a process may be killed while it writes
        delete_checkpoint=writes,
    )
