"""What is printed and written."""

import datetime

import numpy as np
import tensorflow as tf

from benchmarks import machine
from benchmarks.conversion import rows, scores
from benchmarks.tables import table


def section(source, found, num_draws, pairs=()):
    """The table of a model.

    Args:
        source: `Pretrained`.
        found: list of `scores.Score`, the exact model first.
        num_draws: int, as in `scores.losses_of`.
        pairs: names of two rows each, and `scores.paired` of the two.
    """
    given = scores.questions(source)
    lines = [
        [
            score.name,
            f"{score.nll:.3f}",
            f"{score.lost:+.3f}",
            f"{score.standard_error:.3f}",
            f"{score.seconds:.0f}",
        ]
        for score in found
    ]
    compared = "".join(
        f"\n\n{name} beside {other}: {mean:+.3f} ± {error:.3f} "
        f"({-mean / error:.1f} s.e. better)."
        for name, other, (mean, error) in pairs
    )
    config = source.config
    return f"""\
## {source.name}

{config.num_layers} layers of {config.num_heads} heads of \
{config.hidden_dim // config.num_heads}; {given.masked.sum()} masked tokens of \
{len(source.sequences)} sequences of {min(map(len, source.sequences))} to \
{max(map(len, source.sequences))} tokens, of which \
{len(np.unique(given.families))} have little in common. Draws of random features, of \
which rows are means: {num_draws}.

{table(["attention", "NLL", "lost", "± s.e.", "CPU seconds"], lines)}{compared}"""


def page(sections, seconds):
    """All of it.

    Args:
        sections: list of str.
        seconds: float, all that it took.
    """
    head = f"""\
# What trained models lose

The mean loss -log p (nats) of masked tokens when other attention takes the place of
that in a trained model, in all its layers, without training. "window" sees the keys
that are at most {rows.WINDOW - 1} places off. "transferred" has {rows.TRANSFER_STEPS}
steps of `transfer_attention` after calibration, on the same tokens; "more data" adds
reactions from the descriptions of other packages to these. What a row loses is paired
with the exact model token by token; standard errors take sequences that have much in
common as one, and there are few.

{machine.name()}, TensorFlow {tf.__version__}; {seconds:.0f} s in all; written
{datetime.date.today()}."""
    return "\n\n".join([head, *sections])
