"""Reports of conversions, which print as tables."""

import math
import typing


def as_text(names, rows, to_the_right=(), notes=()):
    """Returns a table as text: a line of column names, the rows, and the notes.

    `to_the_right` are indices of columns to align on the right.
    """
    lines = [names, *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    columns = (
        "  ".join(
            cell.rjust(width) if index in to_the_right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )
    return "\n".join([*columns, *notes])


def _that_stay(left_out):
    return [f"{path}: stays. {why}" for path, why in left_out.items()]


class ConvertedLayer(typing.NamedTuple):
    """One attention layer of a model.

    Attributes:
        path: str, path of the layer.
        was: str, its class before.
        became: str, its class after; empty if it stayed.
        note: str, details, or why it stayed.
    """

    path: str
    was: str
    became: str
    note: str


class ConversionReport(typing.NamedTuple):
    """Report of the `convert_...` functions; `print` shows it as a table.

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


class CalibratedLayer(typing.NamedTuple):
    """One `PerformerAttention` that was fitted.

    Attributes:
        path: str, path of the layer.
        basis: str, "as it is", "centred" (keys of mean 0) or "balanced" (queries and
            keys of equal covariances, and keys of mean 0 if the layer has biases).
        feature_map: str, the kind of features after fitting.
        before, after: floats, relative errors of the attended values (root of the mean
            square over heads) before and after fitting, without
            `CalibrationReport.change`.
    """

    path: str
    basis: str
    feature_map: str
    before: float
    after: float


class CalibrationReport(typing.NamedTuple):
    """Report of `calibrate`; `print` shows a table.

    Attributes:
        layers: list of `CalibratedLayer`.
        left_out: dict from paths of layers that could not be fitted to the reasons.
        before, after: floats, relative errors of the model's output before and after
            fitting: the norm of the difference from the output with exact attention,
            divided by the norm of this exact output. nan if this norm is 0 or the
            model has no float outputs: then each layer's own error decides.
        fitted: bool, false if fitting clearly harmed the output, so that all layers
            stayed as they were.
        change: float, number added to the log-gains of all fitted layers at the end.
    """

    layers: list[CalibratedLayer]
    left_out: dict[str, str]
    before: float
    after: float
    fitted: bool
    change: float

    def __str__(self):
        names = "layer", "queries and keys", "features", "error before", "after"
        cells = [
            (*layer[:3], f"{layer.before:.3f}", f"{layer.after:.3f}")
            for layer in self.layers
        ]
        text = f"output of the model: error {self.before:.3f}, {self.after:.3f} after"
        if math.isnan(self.before):
            text = "output of the model: no error, as it has no floats other than 0"
        if not self.fitted:
            text += "; fitting would increase it, so all layers stay as they were"
        if self.change:
            text += f"; all log-gains {self.change:+g}"
        return as_text(names, cells, (3, 4), [*_that_stay(self.left_out), text])


# The advice is to keep a layer exact if its error after training exceeds this.
LOST_ERROR = 0.5


class TransferredLayer(typing.NamedTuple):
    """One `PerformerAttention` that was trained.

    Attributes:
        path: str, path of the teacher's layer.
        before, after: floats, relative errors of the output on the held-out last eighth
            of the batches; with a single batch, on that batch. Equal if training did
            not help: the layer then keeps its old weights. nan if the teacher's outputs
            are 0.
        seconds: float, time of its training steps.
    """

    path: str
    before: float
    after: float
    seconds: float

    @property
    def advice(self):
        """Advice from the error, a str; empty if the layer learned."""
        if math.isnan(self.after):
            return "nothing to learn: its outputs are 0"
        return "" if self.after <= LOST_ERROR else "keep it exact"


class TransferReport(typing.NamedTuple):
    """Report of `transfer_attention`; `print` shows a table.

    Attributes:
        layers: list of `TransferredLayer`.
        left_out: dict from paths of layers that could not be trained to the reasons.
    """

    layers: list[TransferredLayer]
    left_out: dict[str, str]

    @property
    def learned(self):
        """Paths of the layers that learned or whose outputs are 0, a list.

        To keep the other layers exact, pass it as `layers` to `convert_to_performer`,
        with your window, and calibrate and transfer again.
        """
        return [layer.path for layer in self.layers if not layer.after > LOST_ERROR]

    def __str__(self):
        names = "layer", "error before", "after", "seconds", "advice"
        cells = [
            (x.path, f"{x.before:.3f}", f"{x.after:.3f}", f"{x.seconds:.1f}", x.advice)
            for x in self.layers
        ]
        return as_text(names, cells, (1, 2, 3), _that_stay(self.left_out))
