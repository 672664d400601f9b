"""Models as folders in the layout of KerasHub's presets, without KerasHub."""

import datetime
import json
import os
import pathlib
import typing

import keras

from keras_performer import __version__
from keras_performer.layers.arguments import with_article

# KerasHub's names.
_CONFIG = "config.json"
_METADATA = "metadata.json"
_CARD = "README.md"
_WEIGHTS = "model.weights.h5"
_SHARDS = "model.weights.json"

_BYTES_OF_GB = 1024**3

# Keras 3.10 does not find a layer again that it splits between two parts.
_KEEPS_PARTS = (3, 11, 3)


def save_to_preset(
    model: typing.Any,
    folder: str | os.PathLike,
    *,
    tokenizer: str | dict | None = None,
    card: str | None = None,
    max_shard_size: float | None = 10,
) -> None:
    """Saves a model as a preset folder: its config, weights and card.

    It is a preset as KerasHub lays it out, of any Keras model: `config.json`, the model
    with the name of its class; `model.weights.h5`, or `model.weights.json` and the
    parts that it names; `metadata.json`, the versions, the number of parameters, the
    date, and the tokenizer; `README.md`, the model's card. There is no optimizer in it:
    a run that is to go on is saved by `model.save`.

    Args:
        model: a built Keras model, such as a `PerformerLM` or what
            `convert_to_performer` made.
        folder: path of a folder that does not exist, or is empty.
        tokenizer: str or dict of JSON values, whatever says where tokens come from, for
            `preset_metadata` to give back. A model of bytes needs none. Defaults to
            `None`.
        card: str, the text of `README.md`. Defaults to a short one.
        max_shard_size: number, the size in GB from which weights are written in parts,
            each at most that large. `None` for one file, which it always is before
            Keras 3.11.3. Defaults to `10`.

    Raises:
        ValueError: if the model is not built, or the folder has something in it.

    Example:

    >>> import tempfile
    >>> from keras_performer import PerformerLM
    >>> model = PerformerLM(256, max_length=100, num_layers=1, num_heads=2,
    ...                     hidden_dim=16, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_to_preset(model, folder, tokenizer="bytes")
    ...     again = from_preset(folder)
    ...     print(preset_metadata(folder)["tokenizer"])
    bytes
    >>> tokens = keras.ops.ones((1, 5), "int32")
    >>> bool(keras.ops.all(again(tokens) == model(tokens)))
    True
    """
    if not isinstance(model, keras.Model) or not model.built:
        raise ValueError(
            "model must be a Keras model that is built: call it on data first. "
            f"Received: model={model!r}"
        )
    path = pathlib.Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(
            "folder must be that of a new preset, or empty: nothing is written over. "
            f"Received: folder={str(folder)!r}, which has something in it"
        )
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    metadata = {
        "keras_version": keras.__version__,
        "keras_performer_version": __version__,
        "parameter_count": model.count_params(),
        "date_saved": datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S"),
        "tokenizer": tokenizer,
    }
    # all that can be refused before anything is written
    texts = {
        name: json.dumps(x, indent=4)
        for name, x in {_METADATA: metadata, _CONFIG: config}.items()
    }
    path.mkdir(parents=True, exist_ok=True)
    size = sum(
        weight.value.dtype.size * weight.value.shape.num_elements()
        for weight in model.weights
    )
    is_large = max_shard_size is not None and size > max_shard_size * _BYTES_OF_GB
    if is_large and _numbers(keras.__version__) >= _KEEPS_PARTS:
        model.save_weights(path / _SHARDS, max_shard_size=max_shard_size)
    else:
        model.save_weights(path / _WEIGHTS)
    texts = {_CARD: _card(config, metadata) if card is None else card, **texts}
    for name, text in texts.items():  # last the config, which makes it a preset
        (path / name).write_text(text, encoding="utf-8")


def from_preset(
    folder: str | os.PathLike,
    *,
    load_weights: bool = True,
    dtype: typing.Any = None,
) -> keras.Model:
    """Loads the model of a preset folder.

    `save_to_preset` wrote the folder, or KerasHub for a backbone.

    Args:
        folder: path of the folder.
        load_weights: bool, whether to load the weights. Without, they are initialized.
            Defaults to `True`.
        dtype: str or dtype policy, for all layers in the place of the one that they
            have; where they have several, there is none for all. Defaults to what was
            saved.

    Returns:
        The model, not compiled.

    Raises:
        ValueError: if the folder is no preset, or its model cannot be made here.
    """
    config = _read(folder, _CONFIG)
    if not isinstance(config, dict) or "registered_name" not in config:
        entries = sorted(config) if isinstance(config, dict) else config
        raise ValueError(
            f"{_CONFIG} of a preset must be that of a Keras object, with its "
            f"registered_name: others are for the library that wrote them. Received: "
            f"folder={str(folder)!r}, with the entries {entries!r}"
        )
    if dtype is not None:
        config = _with_dtype(config, dtype)
    try:
        model = keras.saving.deserialize_keras_object(config)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The model of the preset {str(folder)!r} could not be made: import what "
            f"defines its classes first.{_newer(folder)} Keras says: {error}"
        ) from error
    if load_weights:
        path = pathlib.Path(folder)
        name = _WEIGHTS if (path / _WEIGHTS).exists() else _SHARDS
        if not (path / name).exists():
            raise ValueError(
                f"A preset must have {_WEIGHTS} or {_SHARDS}: copy all of its files, "
                "or use load_weights=False. Received: "
                f"folder={str(folder)!r}, without weights"
            )
        model.load_weights(path / name)
    return model


def preset_metadata(folder: str | os.PathLike) -> dict[str, typing.Any]:
    """Reads the metadata of a preset folder.

    Args:
        folder: path of the folder.

    Returns:
        Dict of `"keras_version"`, `"keras_performer_version"`, `"parameter_count"`,
        `"date_saved"` and `"tokenizer"`, what `save_to_preset` was given.

    Raises:
        ValueError: if the folder is no preset.
    """
    return _read(folder, _METADATA)


class HasPresets:
    """Mixin for a model that is saved as a preset by a method."""

    def save_to_preset(self, folder: str | os.PathLike, **options: typing.Any) -> None:
        """Writes a folder with the model and its weights: `models.save_to_preset`.

        Args:
            folder: path of a folder that does not exist, or is empty.
            **options: `tokenizer`, `card` and `max_shard_size`, as there.
        """
        save_to_preset(self, folder, **options)

    @classmethod
    def from_preset(
        cls, folder: str | os.PathLike, **options: typing.Any
    ) -> typing.Self:
        """The model of such a folder: `models.from_preset`.

        Args:
            folder: path of the folder.
            **options: `load_weights` and `dtype`, as there.
        """
        model = from_preset(folder, **options)
        if not isinstance(model, cls):
            raise ValueError(
                f"folder must be a preset of {with_article(cls.__name__)}: "
                "keras_performer.models.from_preset reads any. Received: "
                f"folder={str(folder)!r}, of {with_article(type(model).__name__)}"
            )
        return model


def _read(folder, name):
    path = pathlib.Path(folder) / name
    if not path.is_file():
        there = "which has no such file" if path.parent.is_dir() else "which is none"
        raise ValueError(
            f"folder must be a preset, with a {name}: save_to_preset makes one. "
            f"Received: folder={str(folder)!r}, {there}"
        )
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{name} of a preset must be JSON: write the preset again. Received: "
            f"folder={str(folder)!r}, where it is not: {error}"
        ) from error


def _newer(folder):
    """A sentence if what wrote a preset is newer than what reads it."""
    path = pathlib.Path(folder) / _METADATA
    metadata = preset_metadata(folder) if path.is_file() else {}
    installed = {"keras": keras.__version__, "keras_performer": __version__}
    for name, version in installed.items():
        saved = metadata.get(f"{name}_version") or "0"
        if _numbers(saved) > _numbers(version):
            return (
                f" It was saved by {name} {saved}, which is newer than {version} here: "
                f"pip install {name}=={saved}."
            )
    return ""


def _numbers(version):
    """The numbers of a version, a tuple: (3, 15, 1)."""
    parts = version.split(".")
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def _with_dtype(config, dtype):
    """The config of a model whose layers have another dtype policy."""
    policies = list(_policies(config))
    names = {policy[_key(policy)] for policy in policies} - {None}
    if len(names) != 1:
        raise ValueError(
            "dtype is for models whose layers have one: leave it out, to load all as "
            f"they were saved. Received: dtype={dtype!r}, for layers of {sorted(names)}"
        )
    for policy in policies:
        policy[_key(policy)] = keras.dtype_policies.get(dtype).name
    return config


def _policies(config):
    """The configs of the dtype policies in a config."""
    if isinstance(config, list):
        for item in config:
            yield from _policies(item)
    elif isinstance(config, dict):
        if "DTypePolicy" in str(config.get("class_name")):
            yield config["config"]
        for item in config.values():
            yield from _policies(item)


def _key(policy):
    """Name of the floats of a policy in its config."""
    # that of a map, of what is quantized, of others
    return next(k for k in ("default_policy", "source_name", "name") if k in policy)


def _card(config, metadata):
    """The text of a card for its author to go on with."""
    return f"""---
library_name: keras
---
A `{config["class_name"]}` of {metadata["parameter_count"]:,} parameters, saved by
keras_performer {metadata["keras_performer_version"]} with Keras \
{metadata["keras_version"]}:

```python
import keras_performer

model = keras_performer.models.from_preset("path/of/this/folder")
```

Not said yet: what it was trained on, how good it is, what it is for.
"""
