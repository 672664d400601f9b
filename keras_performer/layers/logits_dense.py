"""The dense layer that makes logits."""

import keras

from keras_performer.layers.lora_weights import KeepsLora


@keras.saving.register_keras_serializable(package="keras_performer")
class LogitsDense(KeepsLora, keras.layers.Dense):
    """`keras.layers.Dense` that files keep with LoRA as it is."""
