"""LoRA in files of dense layers and embeddings, with and without."""

import keras
import numpy as np
import pytest

from keras_performer.layers.dense import LogitsDense, token_dense
from keras_performer.layers.embeddings import TokenEmbedding
from tests.contract import relative_error
from tests.layers.inputs import normal

TOKENS = np.random.default_rng(0).integers(11, size=(3, 5)).astype("int32")


MAKE = {
    "HeadsDense": lambda: token_dense("dense", 6),
    "TokenEmbedding": lambda: TokenEmbedding(11, 6),
    "LogitsDense": lambda: LogitsDense(6),
}


def model_of(class_name):
    tokens = keras.Input((5,), dtype="int32")
    inputs = tokens if class_name == "TokenEmbedding" else keras.Input((5, 8))
    return keras.Sequential([inputs, MAKE[class_name]()])


@pytest.mark.parametrize("class_name", MAKE)
def test_weights_with_lora_and_without_go_into_each_other(class_name):
    plain, with_lora, other = (model_of(class_name) for _ in range(3))
    x = TOKENS if class_name == "TokenEmbedding" else normal((3, 5, 8))
    for model in (with_lora, other):
        model.layers[-1].enable_lora(2, lora_alpha=3)
    layer = with_lora.layers[-1]
    for name in layer.lora_names[1:]:
        factor = getattr(layer, name)
        factor.assign(normal(factor.shape, 3))
    expected = with_lora(x)
    with_lora.save_weights("lora.weights.h5")
    plain.load_weights("lora.weights.h5")  # the product goes into the kernel
    assert relative_error(plain(x), expected) < 1e-6
    plain.save_weights("plain.weights.h5")
    other.load_weights("plain.weights.h5")  # LoRA begins anew, where it can learn
    assert relative_error(other(x), expected) < 1e-6
    factors = [np.array(getattr(other.layers[-1], n)) for n in layer.lora_names[1:]]
    assert np.any(factors[0]) and not np.any(factors[1])


@pytest.mark.parametrize(
    ("prepare", "received"),
    [
        (lambda layer: layer.enable_lora(3), "rank=3, lora_alpha=3"),
        (lambda layer: layer.enable_lora(2), "rank=2, lora_alpha=2"),
        (lambda layer: layer.quantize("int8"), "kernel is quantized, without LoRA"),
    ],
)
def test_weights_of_another_lora_are_refused(prepare, received):
    model, other = model_of("LogitsDense"), model_of("LogitsDense")
    model.layers[-1].enable_lora(2, lora_alpha=3)
    model.save_weights("lora.weights.h5")
    prepare(other.layers[-1])
    message = rf"enable_lora\(2, lora_alpha=3\).*{received}"
    with pytest.raises(ValueError, match=message):
        other.load_weights("lora.weights.h5")


def test_keras_own_layer_refuses_weights_with_lora():
    model = model_of("LogitsDense")
    model.layers[-1].enable_lora(2, lora_alpha=3)
    layer = keras.layers.Dense(6, name=model.layers[-1].name)
    layer.build((None, 5, 8))
    layer.enable_lora(2)
    entries = {}
    model.layers[-1].save_own_variables(entries)
    with pytest.raises(KeyError):
        layer.load_own_variables(entries)
