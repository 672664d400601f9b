"""KerasHub's models as folders: in its layout, with linear attention inside."""

import json

import keras_hub
import numpy as np
import pytest

from keras_performer import convert_to_performer
from keras_performer.models import from_preset, save_to_preset
from tests.contract import relative_error
from tests.keras_hub import models


@pytest.mark.parametrize("make", [models.bert, models.gpt2])
def test_a_converted_backbone_comes_back(make, tmp_path):
    backbone = models.with_random_weights(make())
    x = models.data_for(backbone)
    performer, _ = convert_to_performer(
        backbone, exact_window=3, num_random_features=8, seed=0
    )
    save_to_preset(performer, tmp_path / "performer")
    loaded = from_preset(tmp_path / "performer")
    assert isinstance(loaded, type(backbone))
    assert_equal(loaded(x), performer(x))
    half = from_preset(tmp_path / "performer", dtype="bfloat16")
    assert half.compute_dtype == "bfloat16"
    for one, other in zip(flat(half(x)), flat(performer(x))):
        assert 0 < relative_error(one, other) < 0.2


def flat(output):
    return list(output.values()) if isinstance(output, dict) else [output]


def assert_equal(actual, expected):
    for one, other in zip(flat(actual), flat(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_folders_of_both_are_read_by_both(tmp_path):
    """Where nothing of ours is in the model."""
    backbone = models.with_random_weights(models.gpt2())
    x = models.data_for(backbone)
    backbone.save_to_preset(str(tmp_path / "theirs"))
    save_to_preset(backbone, tmp_path / "ours")
    assert_equal(from_preset(tmp_path / "theirs")(x), backbone(x))
    loaded = keras_hub.models.Backbone.from_preset(str(tmp_path / "ours"))
    assert_equal(loaded(x), backbone(x))
    theirs, ours = (
        json.loads((tmp_path / name / "metadata.json").read_text())
        for name in ("theirs", "ours")
    )
    shared = {"keras_version", "parameter_count"}
    assert {name: ours[name] for name in shared} == {
        name: theirs[name] for name in shared
    }
