import pytest

from benchmarks import input_pipeline
from benchmarks.tpu.table import CONFIGS
from examples.imagenet64.config import Config


def test_flops_are_six_for_each_weight_and_token():
    # by hand: 6 layers of 4 projections and a feed-forward network, and the head
    weights = 6 * (4 * 512 * 512 + 2 * 512 * 2048) + 512 * 256
    paper = Config.from_preset("paper")
    assert input_pipeline.flops_per_image(paper) == 6 * 12288 * weights


def test_the_chips_of_a_host_use_images_in_proportion_to_their_peak():
    used = input_pipeline.images_used
    assert used("v4-32") == pytest.approx(used("v4-8"))  # four chips a host in both
    assert used("v5e-8") == pytest.approx(8 * used("v5e-1"))
    assert used("v6e-8") / used("v5e-8") == pytest.approx(918 / 197)


def test_every_slice_is_compared():
    files = {path.stem for path in CONFIGS.glob("*.yaml")}
    assert set(input_pipeline.CHIPS) == files - {"cpu"}


def test_the_command_prints_both_tables(capsys, monkeypatch):
    monkeypatch.setattr(input_pipeline, "images_used", lambda name: 100.0)
    flags = "--number 64 --shards 2 --batch_size 8 --seconds 0.2 --repeats 1"
    input_pipeline.main(flags.split())
    printed = capsys.readouterr().out
    rows = [line.split("|") for line in printed.splitlines() if line.startswith("|")]
    speed = {row[1].strip(): row[2].strip().replace(",", "") for row in rows}
    # a busy machine still reads some a second
    assert all(float(speed[hosts]) > 1 for hosts in "124")
    assert "v4-32" in speed and "TensorFlow" in printed and "64 images" in printed
