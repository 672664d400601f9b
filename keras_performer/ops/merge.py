"""Merges the states of neighbouring pieces of a sequence."""

import typing

import tensorflow as tf

from keras_performer.ops.kernels.base import Kernel
from keras_performer.ops.local.recent import Recent
from keras_performer.ops.state import State, absorb_keys, merged
from keras_performer.ops.tensors import TensorLike
from keras_performer.ops.windowed import WindowedState, far_and_near

AnyState = typing.TypeVar("AnyState", State, WindowedState, Recent)


def merge_states(
    kernel: Kernel | None,
    left: AnyState,
    right: AnyState,
    right_length: TensorLike | None = None,
) -> AnyState:
    """Merges the states of two pieces of a sequence.

    Merging is associative: you may merge neighbouring pieces in any order. Both states
    must come from the same kernel with the same parameters. Keys that leave the window
    are absorbed into the sums. Do not merge states made with `decay`: they lack the
    decay of their piece.

    Args:
        kernel: as in `bidirectional_attention`; `None` for `Recent` states.
        left, right: states of the earlier and of the later keys, of the same class
            (`State`, `WindowedState` or `Recent`). Each must have started from an
            initial state.
        right_length: int, or int tensor `()` or `(B,)`, number of tokens of the right
            piece, including masked tokens: the entry `"position"` of a layer's state.
            States with a window need `right_length`, because they do not distinguish
            masked tokens from missing tokens. Defaults to `None`.

    Returns:
        The state of the joined piece, of the same class and shapes.

    Raises:
        ValueError: if the states differ in class or shapes, or if the kernel or the
            length is missing.

    Example:

    >>> from keras_performer import ops
    >>> kernel = ops.ExponentialKernel(ops.orthogonal_gaussian_matrix(8, 2, (0, 1)))
    >>> x = tf.random.stateless_normal((1, 6, 1, 2), seed=(0, 2))
    >>> empty = ops.initial_state(1, 1, 8, 2)
    >>> whole = ops.absorb_keys(x, x, kernel, None, empty)
    >>> pieces = tf.split(x, 2, axis=1)
    >>> left, right = (ops.absorb_keys(p, p, kernel, None, empty) for p in pieces)
    >>> difference = merge_states(kernel, left, right).sums - whole.sums
    >>> bool(tf.reduce_max(tf.abs(difference)) < 1e-5)
    True

    With a window of two tokens, and one token in the right piece:

    >>> visible = ops.Visibility(causal=True)
    >>> left, right, whole = (
    ...     ops.windowed_attention(p, p, p, kernel, 2, key_mask=visible)[1]
    ...     for p in (x[:, :5], x[:, 5:], x))
    >>> merged = merge_states(kernel, left, right, right_length=1)
    >>> bool(tf.reduce_all(merged.key == whole.key))
    True
    """
    _check_alike(left, right)
    if isinstance(left, Recent):
        return left.joined(right, _checked(right_length, left))[0]
    if kernel is None:
        raise ValueError(
            "kernel must be the kernel that made the states; only Recent, the states "
            "of local attention, need no kernel. Received: states of type "
            f"{type(left).__name__} and kernel=None"
        )
    if isinstance(left, State):
        return merged(left, right)
    (left_far, left_near), (right_far, right_near) = map(far_and_near, (left, right))
    near, left_out = left_near.joined(right_near, _checked(right_length, left))
    left_far = absorb_keys(
        left_out.key, left_out.value, kernel, left_out.seen, left_far
    )
    return WindowedState(*merged(left_far, right_far), *near)


def _checked(right_length, state):
    """Returns the length as a tensor, or raises a `ValueError` if it is `None`."""
    if right_length is None:
        raise ValueError(
            "States with a window need right_length, the number of tokens of the right "
            'piece: pass the "position" of its state. Received: states of type '
            f"{type(state).__name__} and right_length=None"
        )
    return tf.convert_to_tensor(right_length, tf.int32)


def _check_alike(left, right):
    """Raises a `ValueError` unless both states have one class and equal shapes."""
    kinds = State, WindowedState, Recent
    alike = isinstance(left, kinds) and type(left) is type(right)
    if alike and any(getattr(x, "decay", None) is not None for x in (left, right)):
        raise ValueError(
            "States made with decay cannot be merged, because they lack the decay of "
            "their piece: pass the left state to the call of the right piece. "
            f"Received: a {type(left).__name__} with decay"
        )
    if not alike or not all(
        x.shape.is_compatible_with(y.shape)
        for x, y in zip(left, right)
        if x is not None
    ):
        raise ValueError(
            "left and right must both be a State, a WindowedState or a Recent, of "
            "equal shapes: states of one layer for one batch size. Received: left "
            f"{_described(left)}, right {_described(right)}"
        )


def _described(state):
    """Returns the type of a state, and the shapes of its entries."""
    name = type(state).__name__
    if not isinstance(state, (State, WindowedState, Recent)):
        return f"of type {name}"
    entries = state._asdict().items()
    shapes = [f"{n}={tuple(x.shape)}" for n, x in entries if x is not None]
    return f"{name}({', '.join(shapes)})"
