"""Attention over any axes of an input, as attention over one."""

import tensorflow as tf

from keras_performer.ops.shapes import size


class AttentionAxes:
    """Folds `(B, ..., heads, dim)` to `(B', length, heads, dim)` and back.

    Args:
        rank: int, the rank of the layer's inputs `(B, ..., features)`.
        axes: tuple of ints, the axes that attention runs over; the others between
            batch and features become part of the batch. `None` means all of them.
    """

    def __init__(self, rank, axes=None):
        inner = range(1, rank - 1)
        if rank < 3:
            raise ValueError(
                "Inputs must have shape (batch, length, features), or more axes "
                "between batch and features: embed ids of tokens first, and add a "
                f"missing batch with x[None]. Received: inputs of rank {rank}"
            )
        if axes is None:
            axes = inner
        self.attended = tuple(a + rank if a < 0 else a for a in axes)
        different = set(self.attended)
        if not 0 < len(different) == len(self.attended) or not different <= set(inner):
            raise ValueError(
                "attention_axes must be axes between the batch and the features axis "
                f"of inputs of rank {rank}. Received: attention_axes={tuple(axes)}"
            )
        self.batch = (0, *(a for a in inner if a not in self.attended))

    @property
    def is_plain(self):
        """Whether inputs are `(B, length, features)` already."""
        return self.batch == (0,) and self.attended == (1,)

    def check_batches(self, query, key):
        """Raises an error unless queries and keys agree where they do not attend."""
        if query is key:
            return
        message = (
            "query, key and value must have the same sizes in the batch axis and in "
            "those that attention does not run over: repeat the smaller one. "
            f"Received: query of shape {tuple(query.shape)} and key of shape "
            f"{tuple(key.shape)}, with attention_axes={self.attended}"
        )
        for axis in self.batch:
            one, other = size(query, axis), size(key, axis)
            if not (isinstance(one, int) and isinstance(other, int)):
                tf.debugging.assert_equal(one, other, message)
            elif one != other:
                raise ValueError(message)

    def length(self, x):
        """How many tokens attention runs over: an int where that is known."""
        return _product(x, self.attended)

    def fold(self, x):
        if self.is_plain:
            return x
        order = (*self.batch, *self.attended)
        rest = tuple(range(len(order), len(x.shape)))
        x = tf.transpose(x, order + rest)
        batch = _product(x, range(len(self.batch)))
        length = _product(x, range(len(self.batch), len(order)))
        return tf.reshape(x, [batch, length, *(x.shape[axis] for axis in rest)])

    def fold_places(self, x):
        """`fold` of what has a number for each place, `(B, ...)` to `(B', length)`."""
        return x if self.is_plain else self.fold(x[..., tf.newaxis])[..., 0]

    def unfold(self, x, like):
        """The inverse of `fold`, for a tensor whose folded axes are those of `like`."""
        if self.is_plain:
            return x
        order = (*self.batch, *self.attended)
        rest = tuple(range(2, len(x.shape)))
        shape = [size(like, axis) for axis in order] + [x.shape[axis] for axis in rest]
        x = tf.reshape(x, shape)
        inverse = [order.index(axis) for axis in range(len(order))]
        return tf.transpose(x, inverse + list(range(len(order), len(shape))))

    def unfold_scores(self, scores, query, key):
        """Scores `(B', N, T, S)` with every folded axis of query and key again."""
        if self.is_plain:
            return scores
        shape = [size(query, axis) for axis in self.batch]
        shape.append(scores.shape[1])
        shape += [size(x, axis) for x in (query, key) for axis in self.attended]
        return tf.reshape(scores, shape)


def _product(x, axes):
    product = 1
    for axis in axes:
        product = product * size(x, axis)
    return product
