"""A trained model of a package, with sequences to test it on."""

import collections.abc
import dataclasses

import keras

from benchmarks.conversion import bert


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Weights, and tokens of sequences.

    Args:
        name: str, of package and version.
        config: `bert.Config`.
        tensors: dict of arrays by PyTorch's names.
        names: dict of PyTorch's names by those of the layers, as in `bert.load`.
        sequences: lists of tokens, with those at both ends that are never masked.
        mask_token: int, what takes the place of a token that is to be guessed.
        further: function that returns more sequences, of which nothing is asked: only
            rows that say so are fitted to them. `None` if there are none.
        exact_nll: float, what the exact model was found to score on
            `masking.examples(sequences, mask_token, seed=1)` by a program of its own,
            in NumPy. `None` if it is not known.
    """

    name: str
    config: bert.Config
    tensors: dict
    names: dict
    sequences: list
    mask_token: int
    exact_nll: float | None = None
    further: collections.abc.Callable | None = None

    def model(self, attention=keras.layers.MultiHeadAttention):
        """The trained model, with other attention if given; as in `bert.make_model`."""
        model = bert.make_model(self.config, attention)
        bert.load(model, self.tensors, self.names)
        return model


def with_token_types(tensors, prefix):
    """The type of all tokens is 0: its embedding is added to those of positions.

    Args:
        tensors: dict of arrays by PyTorch's names.
        prefix: str, PyTorch's name of the embeddings.
    """
    position = f"{prefix}.position_embeddings.weight"
    of_type = tensors[f"{prefix}.token_type_embeddings.weight"][0]
    return {**tensors, position: tensors[position] + of_type}
