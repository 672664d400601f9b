"""The image model: what it reads, that it is causal, and its state."""

import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import likelihoods, pixels
from examples.imagenet64 import model as image_model
from examples.imagenet64.config import Config
from keras_performer.layers import LocalAttention

SMALL = dict(
    num_layers=1,
    num_heads=1,
    hidden_dim=6,
    intermediate_dim=4,
    num_random_features=4,
)


def small_model(**changes):
    return image_model.make(Config(**{**SMALL, **changes}))


def photograph(seed=0):
    """A smooth random image."""
    random = np.random.default_rng(seed)
    waves = random.normal(size=(4, 3)) @ random.normal(size=(3, 3))
    y, x = np.mgrid[:64, :64] / 20
    basis = np.stack([np.sin(x), np.cos(y), np.sin(x + y), np.ones_like(x)], -1)
    image = 128 + 40 * basis @ waves / np.abs(waves).max()
    return np.clip(image + random.normal(size=image.shape), 0, 255).astype(np.uint8)


def test_the_control_has_no_attention():
    model = small_model(attention="none", num_layers=2)
    assert [block.attention for block in model.blocks] == [None, None]
    # outputs then depend on the last three sub-pixels alone
    inputs, _ = image_model.shift(photograph()[np.newaxis])
    other = tf.concat([255 - inputs[:, :7], inputs[:, 7:]], 1)
    before, after = (model(x[:, :20]).numpy()[0] for x in (inputs, other))
    assert np.abs(before - after)[:9].max(-1).min() > 0
    np.testing.assert_array_equal(before[9:], after[9:])


def test_with_attention_outputs_depend_on_the_row_above():
    model = small_model()
    inputs, _ = image_model.shift(photograph()[np.newaxis])
    other = tf.concat([255 - inputs[:, :90], inputs[:, 90:]], 1)
    before, after = (model(x[:, :300]).numpy()[0] for x in (inputs, other))
    assert np.abs(before - after)[93 : 90 + pixels.ROW].max(-1).min() > 0


@pytest.mark.parametrize("jit_compile", [False, True])
def test_gradients_of_the_constants_of_the_embedding_do_not_stall(jit_compile):
    """Keras' gradient of a bias in bfloat16 does, at 64 here: a running sum."""
    embedding = pixels.PixelEmbedding(2, dtype="mixed_bfloat16")
    inputs = tf.fill((8, pixels.LENGTH), pixels.GREY)

    @tf.function(jit_compile=jit_compile)
    def run(weight):
        kernel = embedding.kernel.value
        with tf.GradientTape() as tape:
            output, *_ = embedding(inputs, embedding.empty_state(8))
        return tape.gradient(output, kernel, weight)

    embedding.build((8, pixels.LENGTH))
    gradient = run(tf.fill((8, pixels.LENGTH, 2), tf.constant(0.25, "bfloat16")))
    constants = tf.reshape(gradient, (3, -1, 2))[:, -1]
    np.testing.assert_allclose(constants, 8 * pixels.LENGTH / 3 / 4, rtol=4e-3)


def test_windows_and_positions_are_those_of_the_settings():
    options = dict(exact_window=5, position_embedding="rotary")
    model = small_model(**options)
    attention = model.blocks[0].attention
    assert attention.exact_window == 5 and attention.rotary == (64, 64, 3)
    assert model.positions is None
    attention = small_model(attention="local", exact_window=5).blocks[0].attention
    assert isinstance(attention, LocalAttention)
    assert attention.sliding_window == 5 and attention.rotary == (64, 64, 3)


def test_the_embedding_may_read_more_and_start_rows_from_above():
    model = small_model(num_last=6, start_of_row="above")
    image = photograph()
    inputs, _ = image_model.shift(image[np.newaxis, :3])
    state = model.embedding.empty_state(1)
    x, reference, _ = model.embedding(inputs, state)
    colours = image[:3].ravel().astype("float64")
    kernel = model.embedding.kernel.numpy().reshape(3, 7, -1)
    for i in (7, 100, 192, 193, 383):
        known = [*(colours[i - 6 : i] - 128) / pixels.UNIT, 1.0]
        np.testing.assert_allclose(x[0, i], known @ kernel[i % 3], atol=1e-5)
    rows = reference.numpy().reshape(3, 64, 3)
    np.testing.assert_array_equal(rows[:, 1:], image[:3, :63])
    # the first input is 0, which is no pixel
    np.testing.assert_array_equal(rows[:, 0], [[128] * 3, image[0, 0], image[1, 0]])
    parts = []
    for first, last in [(0, 1), (1, 150), (150, 400), (400, 402), (402, 576)]:
        *part, state = model.embedding(inputs[:, first:last], state)
        parts.append(part)
    for part, whole in zip(zip(*parts), (x, reference), strict=True):
        np.testing.assert_allclose(np.concatenate(part, 1), whole, atol=1e-6)
    again = model.from_config(model.get_config()).embedding
    assert (again.num_last, again.start_of_row) == (6, "above")


def test_outputs_do_not_depend_on_their_own_or_later_sub_pixels():
    model = small_model()
    image = photograph()[np.newaxis]
    inputs, targets = image_model.shift(image)
    changed = np.array(inputs)
    changed[:, 5000:] = 255 - changed[:, 5000:]  # inputs 5000: are targets 4999:
    before, after = (model(x).numpy()[..., :-1] for x in (inputs, changed))
    scale = np.abs(before).max()
    assert np.abs(before - after)[:, :5000].max() < 1e-5 * scale
    assert np.abs(before - after)[:, 5000].max() > 1e-2 * scale


def test_prefill_and_steps_give_the_outputs_of_the_whole():
    model = small_model()
    inputs, _ = image_model.shift(photograph()[np.newaxis])
    inputs = inputs[:, :600]
    whole = model(inputs).numpy()
    parts, state = [], model.get_initial_state(1)
    for first, last in [(0, 1), (1, 2), (2, 192), (192, 597), (597, 598), (598, 600)]:
        part, state = model(inputs[:, first:last], state=state, return_state=True)
        parts.append(part.numpy())
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=2e-4)


def test_the_loss_is_the_mean_of_the_likelihoods_bits():
    model = small_model()
    inputs, targets = image_model.shift(photograph()[np.newaxis])
    outputs = model(inputs[:, :50])
    loss = likelihoods.BitsPerDimension("mixture", 5)(targets[:, :50], outputs)
    logits = model.next_token_logits(outputs[0]).numpy().astype("float64")
    chosen = logits[np.arange(50), targets[0, :50].numpy()]
    assert float(loss) == pytest.approx(-chosen.mean() / np.log(2), rel=1e-4)
    np.testing.assert_allclose(np.exp(logits).sum(-1), 1.0, atol=1e-4)


def test_the_papers_preset_is_the_papers_model():
    config = Config.from_preset("paper")
    model = image_model.make(config)
    assert type(model).__name__ == "PerformerLM"
    # 6 blocks of 4 * 512^2 + 2 * 512 * 2048 weights, their biases and norms, the tables
    block = 4 * 512 * 512 + 4 * 512 + 2 * 512 * 2048 + 2048 + 512 + 4 * 512
    tables = (64 + 64 + 3 + likelihoods.NUM_VALUES) * 512
    head = 2 * 512 + 512 * 256 + 256
    trainable = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert trainable == 6 * block + tables + head
