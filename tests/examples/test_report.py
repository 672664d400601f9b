import math

import numpy as np
import pytest
from PIL import Image

from examples.imagenet64 import data, report
from examples.imagenet64.config import Config
from tests.examples import archives


def test_histogram_by_hand():
    # Three training pixels; red is 0, 0, 1: with add-one smoothing the probability of
    # 0 is 3/259, of 1 it is 2/259 and of every other value 1/259.
    train = np.array([[0, 5, 9], [0, 5, 9], [1, 5, 9]], np.uint8)
    held_out = np.array([[[[0, 5, 9], [1, 6, 8]]]], np.uint8)
    counts = [3, 2, 4, 1, 4, 1]
    expected = np.mean([math.log2(259 / count) for count in counts])
    assert report.histogram_bits(train, held_out) == pytest.approx(expected)


def test_png_is_the_size_of_the_files(tmp_path):
    images = archives.make_images(3)
    total = 0
    for image in images:
        Image.fromarray(image).save(tmp_path / "image.png", optimize=True)
        total += (tmp_path / "image.png").stat().st_size
    assert report.png_bits(images) == pytest.approx(8 * total / (3 * 12288))
    noise = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    assert 8.0 < report.png_bits(noise) < 8.2


def test_baselines_on_the_photographs():
    loaded = data.load(Config())
    baselines = report.baselines(loaded.training_pixels, loaded.held_out)
    assert list(baselines) == ["uniform", "histogram", "png"]
    assert baselines["uniform"] == 8.0
    # Measured once; zlib versions differ in the second decimal.
    assert baselines["histogram"] == pytest.approx(7.449, abs=1e-3)
    assert baselines["png"] == pytest.approx(3.44, abs=0.05)


def test_the_table():
    text = report.table(
        {"Performer": 3.14159, "uniform": 8.0, "png": 10.5}, "made-up images"
    )
    assert text.splitlines() == [
        "Held-out bits per dimension: made-up images",
        "",
        "model                    bits/dim",
        "-----------------------  --------",
        "Performer                   3.142",
        "uniform over 256 values     8.000",
        "PNG, lossless              10.500",
    ]


def test_most_detailed_images_come_first():
    images = np.zeros((5, 64, 64, 3), np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    images[3] = noise
    images[1, :32] = noise[:32]
    np.testing.assert_array_equal(report.most_detailed(images, 2), images[[3, 1]])
