"""Positions of sequences that run through a grid, such as the pixels of an image."""

import math


def coordinates(positions, grid_shape):
    """The coordinates of positions in row-major order, a list of int tensors.

    Args:
        positions: int tensor.
        grid_shape: tuple of ints, the lengths of the axes. That of the first counts for
            nothing: positions beyond the grid are in further rows.
    """
    stride = math.prod(grid_shape[1:])
    found = [positions // stride]
    for length in grid_shape[1:]:
        stride //= length
        found.append(positions // stride % length)
    return found
