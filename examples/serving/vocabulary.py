"""Meaning of a model's tokens, stored in a file of the SavedModel."""

import pathlib
import typing

import pydantic

# TensorFlow reserves this folder of a SavedModel for files of other programs.
FILE = pathlib.Path("assets.extra", "serving.json")


class Tokens(pydantic.BaseModel, extra="forbid"):
    """Plain ids.

    Attributes:
        max_length: int, longest sequence, prompt included; `None` for any length.
        start: ids that come before every prompt, and count as part of it.
    """

    kind: typing.Literal["tokens"] = "tokens"
    max_length: pydantic.PositiveInt | None = None
    start: list[int] = []


class Text(Tokens):
    """Bytes of text in UTF-8; the 256 ids are byte values."""

    kind: typing.Literal["text"] = "text"


class Pixels(Tokens):
    """Pixels of a picture, row by row.

    Attributes:
        width: int, pixels of a row.
        height: int, rows.
        palette: color of each id, as `"#rrggbb"`; ids beyond have none.
    """

    kind: typing.Literal["pixels"] = "pixels"
    width: pydantic.PositiveInt
    height: pydantic.PositiveInt
    palette: list[typing.Annotated[str, pydantic.Field(pattern="^#[0-9a-f]{6}$")]]


_any = pydantic.TypeAdapter(
    typing.Annotated[Text | Pixels | Tokens, pydantic.Field(discriminator="kind")]
)


def read(folder):
    """Reads the vocabulary of a model; without the file, tokens are plain ids."""
    path = pathlib.Path(folder) / FILE
    return _any.validate_json(path.read_bytes()) if path.exists() else Tokens()


def check(vocabulary, vocabulary_size):
    """Raises an error if a model has too few or too many tokens for a vocabulary."""
    if vocabulary.kind == "text" and vocabulary_size != 256:
        raise ValueError(
            "A model of text must have a vocabulary of the 256 bytes: give another "
            f"kind in {FILE}. Received: a vocabulary of {vocabulary_size}"
        )
    wrong = [token for token in vocabulary.start if not 0 <= token < vocabulary_size]
    if wrong:
        raise ValueError(
            f"Tokens of start in {FILE} must be at least 0 and less than "
            f"{vocabulary_size}. Received: {wrong[0]}"
        )


def write(folder, vocabulary):
    """Writes the vocabulary of the model in `folder`."""
    path = pathlib.Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(vocabulary.model_dump_json(indent=2))
