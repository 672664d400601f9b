"""Models as folders: what is in them, and that they come back as they were."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
from packaging.version import Version

import keras_performer
from keras_performer import PerformerLM, convert_to_performer
from keras_performer.layers.keras_privates import all_layers
from keras_performer.models import from_preset, preset_metadata, presets, save_to_preset
from tests.contract import assert_equal_bits, relative_error
from tests.layers.inputs import normal

TOKENS = np.random.default_rng(0).integers(11, size=(3, 9)).astype("int32")
FOLDER = pathlib.Path("folder")
# Keras 3.10 does not find a layer again that it splits
WRITES_PARTS = Version(keras.__version__) >= Version("3.11.3")


def language_model(**changes):
    options = dict(num_random_features=6, seed=None)
    model = PerformerLM(11, 17, 1, 2, 8, **{**options, **changes})
    for block in model.blocks:
        block.attention.redraw_features()
    return model


def entries(name):
    return json.loads((FOLDER / name).read_text())


def test_a_folder_says_what_it_is():
    model = language_model()
    tokenizer = {"name": "bytes", "offset": 2}
    model.save_to_preset(FOLDER, tokenizer=tokenizer)
    names = {"config.json", "metadata.json", "model.weights.h5", "README.md"}
    assert {path.name for path in FOLDER.iterdir()} == names
    config = entries("config.json")
    assert config["registered_name"] == "keras_performer>PerformerLM"
    assert "compile_config" not in config
    metadata = preset_metadata(FOLDER)
    assert metadata.pop("date_saved")
    assert metadata == {
        "keras_version": keras.__version__,
        "keras_performer_version": keras_performer.__version__,
        "parameter_count": sum(np.size(weight) for weight in model.weights),
        "tokenizer": tokenizer,
    }
    card = (FOLDER / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: keras\n---\nA `PerformerLM` of ")


def test_a_card_is_kept_as_it_is_given():
    language_model().save_to_preset(FOLDER, card="Bach, in bytes.\n")
    assert (FOLDER / "README.md").read_text() == "Bach, in bytes.\n"


def test_a_model_comes_back_with_its_features():
    model = language_model()
    model.save_to_preset(str(FOLDER))
    loaded = PerformerLM.from_preset(str(FOLDER))
    assert_equal_bits(loaded(TOKENS), model(TOKENS))
    # and with the draws that follow
    for one in (model, loaded):
        one.blocks[0].attention.redraw_features()
    assert_equal_bits(loaded(TOKENS), model(TOKENS))


def lora(model):
    for layer in all_layers(model):
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2)
            for name in layer.lora_names[1:]:
                factor = getattr(layer, name)
                factor.assign(normal(factor.shape))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_a_quantized_model_with_lora_comes_back_in_parts():
    model = language_model()
    model.quantize("int8")
    lora(model)
    model.save_to_preset(FOLDER, max_shard_size=1e-6)  # kilobytes
    parts = [path for path in FOLDER.iterdir() if path.suffix == ".h5"]
    assert (len(parts) > 1) == WRITES_PARTS
    assert (FOLDER / "model.weights.json").exists() == (len(parts) > 1)
    assert_equal_bits(from_preset(FOLDER)(TOKENS), model(TOKENS))


def test_few_weights_are_in_one_file_by_default():
    size = 4 * sum(np.size(weight) for weight in language_model().weights) / 1024**3
    for name, limit, expected in (
        ("a", size * 1.01, 1),
        ("b", size * 0.99, 1 + WRITES_PARTS),
    ):
        save_to_preset(language_model(), name, max_shard_size=limit)
        parts = [path for path in pathlib.Path(name).iterdir() if path.suffix == ".h5"]
        assert len(parts) == expected


@keras.saving.register_keras_serializable("test_presets")
class OwnModel(keras.Model):
    """A model of one's own with Keras' attention inside."""

    def __init__(self, **options):
        super().__init__(**options)
        dtype = self.dtype_policy
        self.attention = keras.layers.MultiHeadAttention(2, 4, dtype=dtype)
        self.dense = keras.layers.Dense(3, dtype=dtype)

    def build(self, shape):
        self.attention.build(shape, shape)
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x + self.attention(x, x))


def functional():
    inputs = keras.Input((None, 8), name="x")
    x = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs)
    return keras.Model([inputs], keras.layers.Dense(3)(x))


def own():
    model = OwnModel()
    model.build((None, None, 8))
    return model


@pytest.mark.parametrize("make", [functional, own])
def test_converted_models_come_back(make):
    model, _ = convert_to_performer(make(), num_random_features=6, exact_window=2)
    x = normal((2, 5, 8))
    x = x if make is own else [x]  # a list, as old Keras loads one input
    save_to_preset(model, FOLDER)
    loaded = from_preset(FOLDER)
    assert isinstance(loaded, OwnModel if make is own else keras.Model)
    assert_equal_bits(loaded(x), model(x))
    half = from_preset(FOLDER, dtype="mixed_bfloat16")
    with_weights = [layer for layer in half.layers if layer.weights]
    assert {layer.compute_dtype for layer in with_weights} == {"bfloat16"}
    assert 1e-4 < relative_error(half(x), model(x)) < 0.03


def test_without_weights_they_are_drawn():
    model = language_model(seed=3)
    model.save_to_preset(FOLDER)
    loaded = PerformerLM.from_preset(FOLDER, load_weights=False)
    assert loaded.get_config() == model.get_config()
    kernels = [one.blocks[0].expand.kernel.numpy() for one in (loaded, model)]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.1
    assert int(loaded.blocks[0].attention.redraw_count) == 0


def test_weights_are_read_in_another_dtype():
    model = language_model()
    model.save_to_preset(FOLDER)
    loaded = PerformerLM.from_preset(FOLDER, dtype="bfloat16")
    assert loaded.blocks[0].expand.kernel.dtype == "bfloat16"
    assert 1e-4 < relative_error(loaded(TOKENS), model(TOKENS)) < 0.05
    policy = keras.dtype_policies.DTypePolicy("float64")
    loaded = PerformerLM.from_preset(FOLDER, dtype=policy)
    assert 0 < relative_error(loaded(TOKENS), model(TOKENS)) < 1e-5


def test_layers_of_several_dtypes_have_no_other():
    layers = [keras.layers.Dense(2), keras.layers.Dense(2, dtype="float64")]
    save_to_preset(keras.Sequential([keras.Input((3,)), *layers]), FOLDER)
    several = r"leave it out.*layers of \['float32', 'float64'\]"
    with pytest.raises(ValueError, match=several):
        from_preset(FOLDER, dtype="bfloat16")


def test_nothing_is_written_over():
    FOLDER.mkdir()
    model = language_model()
    model.save_to_preset(FOLDER)  # an empty one
    before = {path: path.read_bytes() for path in FOLDER.iterdir()}
    with pytest.raises(ValueError, match="nothing is written over.*'folder'"):
        language_model().save_to_preset(FOLDER)
    assert {path: path.read_bytes() for path in FOLDER.iterdir()} == before
    pathlib.Path("file").touch()
    with pytest.raises(ValueError, match="nothing is written over.*'file'"):
        model.save_to_preset("file")


@pytest.mark.parametrize(
    "model", [None, keras.layers.Dense(1), keras.Sequential([keras.layers.Dense(1)])]
)
def test_what_is_no_built_model_is_refused(model):
    with pytest.raises(ValueError, match="must be a Keras model that is built"):
        save_to_preset(model, FOLDER)
    assert not FOLDER.exists()


def test_what_json_does_not_hold_is_refused_before_anything_is_written():
    with pytest.raises(TypeError, match="set"):
        language_model().save_to_preset(FOLDER, tokenizer={1, 2})
    assert not FOLDER.exists()


def rewrite(name, **changes):
    path = FOLDER / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def of_unknown_class():
    rewrite("config.json", registered_name="other>Model", class_name="M", module="x.y")


def of_newer_package():
    of_unknown_class()
    rewrite("metadata.json", keras_performer_version="9.10.2")


def of_newer_keras():
    of_unknown_class()
    rewrite("metadata.json", keras_version="3.100.0")


def of_transformers():
    (FOLDER / "config.json").write_text(json.dumps({"model_type": "bert"}))


WRONG = {
    lambda: (FOLDER / "config.json").unlink(): "has no such file",
    lambda: FOLDER.rename("elsewhere"): "'folder', which is none",
    lambda: (FOLDER / "config.json").write_text("{"): "must be JSON: write .* again",
    lambda: (FOLDER / "config.json").write_text("3"): "library that wrote.*entries 3",
    lambda: (FOLDER / "model.weights.h5").unlink(): "or use load_weights=False",
    of_transformers: r"for the library that wrote them.*\['model_type'\]",
    of_unknown_class: "import what defines its classes first. Keras says",
    of_newer_package: "keras_performer 9.10.2, which is newer than .* pip install",
    of_newer_keras: "saved by keras 3.100.0, which is newer",
}


def test_what_cannot_be_loaded_says_why():
    language_model().save_to_preset("good")
    for damage, message in WRONG.items():
        shutil.copytree("good", FOLDER)
        damage()
        with pytest.raises(ValueError, match=message):
            from_preset(FOLDER)
        shutil.rmtree(FOLDER, ignore_errors=True)


def test_versions_are_compared_by_their_numbers():
    versions = ["0.1.0", "0.9", "0.10.1", "3.9.0", "3.15.1"]
    assert sorted(versions, key=presets._numbers) == versions


def test_a_preset_of_another_class_is_refused():
    save_to_preset(functional(), FOLDER)
    with pytest.raises(ValueError, match="preset of a PerformerLM.*of a Functional"):
        PerformerLM.from_preset(FOLDER)
