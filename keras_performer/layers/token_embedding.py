"""An embedding of tokens that optimizers treat as any other weight."""

import keras
import tensorflow as tf

from keras_performer.layers.lora_weights import KeepsLora
from keras_performer.ops.gradients import custom_gradient
from keras_performer.ops.shapes import compute_dtype


@keras.saving.register_keras_serializable(package="keras_performer")
class TokenEmbedding(KeepsLora, keras.layers.Embedding):
    """`keras.layers.Embedding` whose table has a tensor as its gradient.

    TensorFlow's gradient of a look-up is one row for each token, and a token that
    comes again has several. Optimizers that square gradients (Adam, RMSprop), and
    clipping by norm, take them one by one: the table would train in another way than
    with the sum of its rows, which is what other passes over the sequence come to.
    The sum is in float32, as one in half precision stops growing.
    """

    lora_names = "embeddings", "lora_embeddings_a", "lora_embeddings_b"

    def call(self, inputs):
        if inputs.dtype not in ("int32", "int64"):
            inputs = tf.cast(inputs, "int32")
        table = tf.convert_to_tensor(self.embeddings)
        rows = keras.ops.take(with_dense_gradient(table), inputs, axis=0)
        return tf.cast(rows, self.compute_dtype)

    def quantized_call(self, *args, **kwargs):
        if not self.lora_enabled:
            return super().quantized_call(*args, **kwargs)
        # here Keras looks rows up in what LoRA adds, and not in the sum of both
        attributes, name = vars(self), "lora_embeddings_a"
        table = attributes[name]
        attributes[name] = with_dense_gradient(tf.convert_to_tensor(table))
        try:
            return super().quantized_call(*args, **kwargs)
        finally:
            attributes[name] = table


def with_dense_gradient(table):
    """The table, whose gradient adds up the rows of look-ups."""

    @custom_gradient
    def identity(table):
        def gradient(drows):
            if isinstance(drows, tf.IndexedSlices):
                values = tf.cast(drows.values, compute_dtype(table))
                drows = tf.IndexedSlices(values, drows.indices, drows.dense_shape)
            return tf.cast(tf.convert_to_tensor(drows), table.dtype)

        return tf.identity(table), gradient

    return identity(table)
