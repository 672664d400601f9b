"""What a conversion says that it did."""

import typing

from keras_performer.approximation.tables import as_text


class ConvertedLayer(typing.NamedTuple):
    """One attention layer of a model.

    Attributes:
        path: str, that of the layer.
        was: str, its class.
        became: str, the class that took its place; empty if it stayed.
        note: str, how, or why not.
    """

    path: str
    was: str
    became: str
    note: str


class ConversionReport(typing.NamedTuple):
    """What `convert_to_performer` and `convert_to_softmax` did; `print` shows a table.

    Attributes:
        layers: list of `ConvertedLayer`, all attention layers of the model.
    """

    layers: list[ConvertedLayer]

    def __str__(self):
        cells = [
            (layer.path, layer.was, layer.became or "stays", layer.note)
            for layer in self.layers
        ]
        return as_text(("layer", "was", "is now", "note"), cells)
