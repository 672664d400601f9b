"""The example `digits`, small."""

import numpy as np
import pytest
import scipy.special
from PIL import Image

from examples import digits


@pytest.fixture
def made_up(monkeypatch):
    """60 images of 28x28, and which digits they are, in place of MNIST's."""
    random = np.random.default_rng(0)
    images = np.repeat(random.integers(0, 256, (60, 196)), 4, axis=1)
    images = images.reshape(60, 14, 14, 2, 2).transpose(0, 1, 3, 2, 4)
    known = images.reshape(60, 784).astype(float), np.arange(60) % 10
    monkeypatch.setattr(digits, "mnist_data", lambda: known)
    return known


def test_a_pixel_is_the_mean_of_four_in_eight_greys(monkeypatch):
    image = np.zeros((28, 28))
    image[:2, 2:4] = [[0, 64], [128, 191]]  # 383 / 4 are 95.75
    image[26:, 26:] = 255
    known = image.reshape(1, 784), np.array([3])
    monkeypatch.setattr(digits, "mnist_data", lambda: known)
    (small,), labels = digits.read_digits()
    expected = np.zeros((14, 14))
    expected[0, 1], expected[13, 13] = 2, 7
    np.testing.assert_array_equal(small.reshape(14, 14), expected)
    assert labels.tolist() == [3]


def test_an_epoch_has_every_image_once():
    images = np.arange(5 * 196).reshape(5, 196) % 8
    tokens = digits.epochs(images, 8)
    assert (tokens[:, 0] == digits.START).all()
    inputs, targets = digits.split(tokens)
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert sorted(map(tuple, targets[:5])) == sorted(map(tuple, images))
    np.testing.assert_array_equal(digits.epochs(images, 8), tokens)


def test_histograms_are_counts_of_each_place():
    random = np.random.default_rng(1)
    training, held_out = (
        random.integers(0, 8, (20, 196)),
        random.integers(0, 8, (3, 196)),
    )
    bits = [
        -np.log2((1 + (training[:, place] == grey).sum()) / 28)
        for image in held_out
        for place, grey in enumerate(image)
    ]
    assert digits.histogram_bits(training, held_out) == pytest.approx(np.mean(bits))


def test_the_embedding_knows_the_place_and_goes_on_from_a_state():
    layer = digits.InkAndPlace(5)
    inputs = np.random.default_rng(2).integers(0, 9, (2, 40))
    whole, *_ = layer(inputs, layer.empty_state(2))
    tables = [x.get_weights()[0] for x in (layer.ink, layer.row, layer.column)]
    for place in (0, 13, 14, 39):
        parts = inputs[1, place], place // 14, place % 14
        expected = sum(table[row] for table, row in zip(tables, parts))
        np.testing.assert_allclose(whole[1, place], expected, atol=1e-6)
    _, _, state = layer(inputs[:, :17], layer.empty_state(2))
    rest, *_ = layer(inputs[:, 17:], state)
    np.testing.assert_allclose(rest, whole[:, 17:], atol=1e-6)


@pytest.mark.slow
def test_bits_are_those_of_the_models_and_given_rows_stay(
    made_up, monkeypatch, one_block, eagerly, capsys
):
    rows = ("no attention", "Performer")  # the others are traced in more time
    monkeypatch.setattr(digits, "ROWS", {name: digits.ROWS[name] for name in rows})
    made, original = [], digits.make_model

    def make_model(*args, **options):
        made.append(original(*args, **options))
        return made[-1]

    monkeypatch.setattr(digits, "make_model", make_model)
    bits, pictures = digits.main(steps=2, output_dir="out")
    images, labels = digits.read_digits()
    held_out = images[::10]
    printed = capsys.readouterr().out
    for name, model in zip(rows, made, strict=True):
        inputs = np.pad(held_out[:, :-1], [(0, 0), (1, 0)], constant_values=8)
        logits = model.predict(inputs, verbose=0).astype("float64")
        log_prob = scipy.special.log_softmax(logits, -1) / np.log(2)
        mean = -np.take_along_axis(log_prob, held_out[..., np.newaxis], -1).mean()
        assert bits[name] == pytest.approx(mean, rel=1e-5)
        assert f"{name:30}{mean:.3f}" in printed
        completed, num_given = pictures[f"completed,\n{name}"]
        np.testing.assert_array_equal(
            completed[:, : 14 * num_given], pictures["held out"][0][:, : 14 * num_given]
        )
        assert num_given == 7 and pictures[f"from nothing,\n{name}"][1] == 0
    assert list(pictures)[0] == "held out" and pictures["held out"][1] == 14
    picture = np.asarray(Image.open("out/digits.png").convert("RGB"))
    assert min(picture.shape[:2]) > 200 and picture.std() > 5
