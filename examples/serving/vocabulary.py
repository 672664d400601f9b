"""What the tokens of a model mean: a file beside it says so."""

import pathlib
import typing

import pydantic

# TensorFlow leaves this folder of a SavedModel to those who write and read it.
FILE = pathlib.Path("assets.extra", "serving.json")


class Tokens(pydantic.BaseModel, extra="forbid"):
    """Ids, of which no more is known.

    Attributes:
        max_length: int, the longest sequence, with its prompt; `None` for any.
        start: ids that come before every prompt, and count as part of it.
    """

    kind: typing.Literal["tokens"] = "tokens"
    max_length: pydantic.PositiveInt | None = None
    start: list[int] = []


class Text(Tokens):
    """The 256 bytes, of text in UTF-8."""

    kind: typing.Literal["text"] = "text"


class Pixels(Tokens):
    """The pixels of a picture, row by row.

    Attributes:
        width: int, pixels of a row.
        height: int, rows.
        palette: color of each id, as `"#rrggbb"`; others have none.
    """

    kind: typing.Literal["pixels"] = "pixels"
    width: pydantic.PositiveInt
    height: pydantic.PositiveInt
    palette: list[typing.Annotated[str, pydantic.Field(pattern="^#[0-9a-f]{6}$")]]


_any = pydantic.TypeAdapter(
    typing.Annotated[Text | Pixels | Tokens, pydantic.Field(discriminator="kind")]
)


def read(folder):
    """What the file beside a model says; ids if there is none."""
    path = pathlib.Path(folder) / FILE
    return _any.validate_json(path.read_bytes()) if path.exists() else Tokens()


def write(folder, vocabulary):
    """Says what the tokens of the model in `folder` mean."""
    path = pathlib.Path(folder) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(vocabulary.model_dump_json(indent=2))
