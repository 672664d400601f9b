"""The optimizer of a run, for one device or many."""

import keras
import tensorflow as tf


def make(config):
    """Returns AdamW with the settings of `config`."""
    return AdamW(
        learning_rate(config),
        weight_decay=config.weight_decay,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        global_clipnorm=config.global_clipnorm,
    )


def learning_rate(config):
    """Returns a learning rate with linear warm-up, then constant or a cosine."""
    if config.learning_rate_decay == "none" and not config.warmup_steps:
        return config.learning_rate
    return keras.optimizers.schedules.CosineDecay(
        0.0 if config.warmup_steps else config.learning_rate,
        decay_steps=max(config.num_steps - config.warmup_steps, 1),
        alpha=0.01 if config.learning_rate_decay == "cosine" else 1.0,
        warmup_target=config.learning_rate if config.warmup_steps else None,
        warmup_steps=config.warmup_steps,
    )


@keras.saving.register_keras_serializable(package="imagenet64")
class AdamW(keras.optimizers.AdamW):
    """AdamW that clips the gradient of the whole batch, for any number of replicas.

    Keras clips the gradient of each replica before the sum. With n replicas, whose
    losses are divided by n, `global_clipnorm` would then act as if n times as large.
    """

    def apply(self, grads, trainable_variables=None):
        context = tf.distribute.get_replica_context()
        replicas = context.num_replicas_in_sync
        # The gradient of an embedding comes as one row for each token. The norm of
        # these rows is another one, and they take longer to send.
        grads = [tf.convert_to_tensor(gradient) for gradient in grads]
        if replicas > 1 and self.global_clipnorm:
            grads = context.all_reduce("SUM", grads)
            grads, _ = tf.clip_by_global_norm(grads, self.global_clipnorm)
            # Keras sums these equal parts again; each is too small to be clipped.
            grads = [gradient / replicas for gradient in grads]
        super().apply(grads, trainable_variables)
