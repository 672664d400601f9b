"""The image model: what it reads, that it is causal, and its state."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.imagenet64 import likelihoods, pixels
from examples.imagenet64 import model as image_model
from examples.imagenet64.config import Config
from keras_performer.recompute import WithTargets

SMALL = dict(
    num_layers=1,
    num_heads=1,
    hidden_dim=4,
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


def look_back(model, inputs):
    """The reference and the differences that the model sees."""
    embedding = model.embedding
    start = embedding.empty_state(inputs.shape[0])
    seen = tf.concat([start["seen"], inputs], 1)
    return embedding._look_back(inputs, seen, start["position"])


def test_the_control_has_no_attention():
    model = small_model(attention="none", num_layers=2)
    assert [block.attention for block in model.blocks] == [None, None]
    # the blocks then see one token at a time
    inputs, _ = image_model.shift(photograph()[np.newaxis])
    first = max(model.embedding.distances) + 1
    other = tf.concat([255 - inputs[:, :1], inputs[:, 1:]], 1)
    outputs = [model(x[:, : 2 * first])[:, first:] for x in (inputs, other)]
    np.testing.assert_array_equal(*outputs)


def test_windows_and_positions_are_those_of_the_settings():
    options = dict(exact_window=5, position_embedding="rotary", hidden_dim=6)
    model = small_model(**options)
    attention = model.blocks[0].attention
    assert attention.exact_window == 5 and attention.rotary == (64, 64, 3)
    assert model.positions is None


def test_inputs_are_the_targets_one_later():
    image = photograph()[np.newaxis]
    inputs, targets = image_model.shift(image)
    np.testing.assert_array_equal(targets[0], image.ravel())
    assert inputs[0, 0] == 0
    np.testing.assert_array_equal(inputs[0, 1:], image.ravel()[:-1])


def test_reference_and_differences_are_the_neighbouring_colours():
    model, image = small_model(), photograph()
    inputs, _ = image_model.shift(image[np.newaxis])
    reference, differences = look_back(model, inputs)
    reference = reference.numpy().reshape(64, 64, 3)
    image = image.astype("float32")
    np.testing.assert_array_equal(reference[:, 1:], image[:, :-1])
    np.testing.assert_array_equal(reference[1:, 0], image[:-1, 0])
    np.testing.assert_array_equal(reference[0, 0], 128.0)
    distances = model.embedding.distances
    differences = differences.numpy().reshape(64, 64, 3, 3, len(distances))
    above = differences[..., distances.index(pixels.ROW)]
    for channel in range(3):
        own = above[1:, 1:, channel]
        expected = (image[:-1, 1:] - image[1:, :-1])[..., channel] / pixels.UNIT
        np.testing.assert_allclose(own[..., channel], expected, atol=1e-6)
        others = [c for c in range(3) if c != channel]
        assert (own[..., others] == 0).all()
    assert (above[0] == 0).all()  # nothing is above the first row


def test_a_pixel_across_the_border_is_not_read():
    model, image = small_model(), photograph()
    changed = image.copy()
    changed[:, 60:] = 255 - changed[:, 60:]

    def differences(image):
        inputs, _ = image_model.shift(image[np.newaxis])
        return look_back(model, inputs)[1].numpy().reshape(64, 64, -1)

    # far from the right border nothing changes, also not at the start of the next row
    np.testing.assert_array_equal(
        differences(changed)[:, :56], differences(image)[:, :56]
    )


def test_outputs_do_not_depend_on_their_own_or_later_sub_pixels():
    model = small_model()
    image = photograph()[np.newaxis]
    inputs, targets = image_model.shift(image)
    changed = np.array(inputs)
    changed[:, 5000:] = 255 - changed[:, 5000:]  # inputs 5000: are targets 4999:
    before, after = model(inputs).numpy(), model(changed).numpy()
    scale = np.abs(before).max()
    assert np.abs(before - after)[:, :5000].max() < 1e-5 * scale
    assert np.abs(before - after)[:, 5000].max() > 1e-2


@pytest.mark.parametrize("likelihood", ["mixture", "categorical"])
@pytest.mark.parametrize("neighbours", [True, False])
def test_prefill_and_steps_give_the_outputs_of_the_whole(likelihood, neighbours):
    model = small_model(likelihood=likelihood, neighbours=neighbours)
    inputs, _ = image_model.shift(photograph()[np.newaxis])
    inputs = inputs[:, :600]
    whole = model(inputs).numpy()
    parts, state = [], model.initial_state(1)
    for first, last in [(0, 1), (1, 2), (2, 192), (192, 597), (597, 598), (598, 600)]:
        part, state = model(inputs[:, first:last], state=state, return_state=True)
        parts.append(part.numpy())
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=2e-4)


def test_the_prediction_is_least_squares():
    model = small_model()
    images = np.stack([photograph(seed) for seed in range(2)])
    inputs, targets = image_model.shift(images)
    reference, x = (t.numpy().astype("float64") for t in look_back(model, inputs))
    y = (targets.numpy() - reference).ravel() / pixels.UNIT
    x = x.reshape(-1, x.shape[-1])
    best = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)
    model.embedding.fit_prediction(images)
    fitted = model.embedding.prediction.numpy()[:, 0]
    residual = ((x @ fitted - y) ** 2).mean()
    assert residual < 1.001 * ((x @ best - y) ** 2).mean() < 0.6 * (y**2).mean()


@pytest.mark.parametrize("likelihood", ["mixture", "categorical"])
def test_the_loss_is_the_mean_of_the_likelihoods_bits(likelihood):
    model = small_model(likelihood=likelihood)
    inputs, targets = image_model.shift(photograph()[np.newaxis])
    outputs = model(inputs[:, :50])
    loss = likelihoods.BitsPerDimension(likelihood, 5)(targets[:, :50], outputs)
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


def test_a_saved_model_loads_and_gives_the_same_outputs(tmp_path):
    model = small_model()
    model.embedding.fit_prediction(photograph()[np.newaxis])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    inputs = image_model.shift(photograph()[np.newaxis])[0][:, :300]
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_weights_from_before_the_embedding_was_a_layer(tmp_path):
    """The model held the prediction, which Keras kept under `layers`."""
    model, other = small_model(), small_model(seed=2)
    model.embedding.fit_prediction(photograph()[np.newaxis])
    model.save_weights(tmp_path / "old.weights.h5")
    with h5py.File(tmp_path / "old.weights.h5", "r+") as file:
        file.move("embedding/vars/2", "layers/dense_2/vars/0")
    other.load_weights(tmp_path / "old.weights.h5")
    assert np.abs(model.embedding.prediction).max() > 0.1
    for one, wanted in zip(other.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["block", "network"])
def test_what_is_computed_again_gives_the_loss_and_gradients_of_plain_training(
    recompute,
):
    inputs, targets = (x[:, :401] for x in image_model.shift(photograph()[None]))

    def loss_and_gradients(recompute):
        keras.utils.set_random_seed(1)
        model = small_model(num_layers=2, recompute=recompute)
        model.embedding.fit_prediction(photograph()[None])
        model.compile("sgd", likelihoods.BitsPerDimension("mixture", 5))
        x = WithTargets(inputs, targets) if recompute else inputs
        with tf.GradientTape() as tape:
            loss = model.compute_loss(y=targets, y_pred=model(x, training=True))
        return [loss, *tape.gradient(loss, model.trainable_weights)]

    results = [tf.convert_to_tensor(x) for x in loss_and_gradients(recompute)]
    expected = [tf.convert_to_tensor(x) for x in loss_and_gradients(None)]
    for result, wanted in zip(results, expected, strict=True):
        scale = max(np.abs(wanted).max(), 1e-3)
        np.testing.assert_allclose(result, wanted, atol=1e-4 * scale)
