"""Products and inverses of matrices, tile by tile.

A library for linear algebra shares large products out to threads, which spin while they wait: next to a busy
scheduler that costs many times the work itself. No product here is large enough for that. The order in which
numbers are summed is fixed as well, whatever the number of cores.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Products of 64 x 64 x 64 numbers stay in one thread, and matrices of that size in a core's cache.
_TILE = 64


def product(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the matrix product."""
    if max(left.size, right.size) <= _TILE**2:
        small: FloatArray = left @ right
        return small
    return Tiled(right).times(left)


class Tiled:
    """A matrix that is cut into tiles once, to be multiplied many times."""

    def __init__(self, matrix: FloatArray) -> None:
        self.shape = matrix.shape
        self._tiles = _tiles(matrix)

    def times(self, left: FloatArray) -> FloatArray:
        """Return ``left`` @ this matrix."""
        count, across = self._tiles.shape[:2]
        padded = np.zeros((len(left), count * _TILE))
        padded[:, : self.shape[0]] = left
        found = np.zeros((len(left), across * _TILE))
        for start in range(0, len(left), _TILE):
            rows = padded[start : start + _TILE]
            total = np.zeros((across, len(rows), _TILE))
            for index in range(count):
                total += rows[:, index * _TILE : (index + 1) * _TILE] @ self._tiles[index]
            found[start : start + _TILE] = total.swapaxes(0, 1).reshape(len(rows), -1)
        return found[:, : self.shape[1]]


def inverse(matrix: FloatArray) -> FloatArray:
    """Return the inverse of a symmetric matrix without directions of 0 or less."""
    size = len(matrix)
    if size <= _TILE:
        return _symmetric(np.linalg.inv(matrix).astype(np.float64, copy=False))
    padded = np.eye(-(-size // _TILE) * _TILE)
    padded[:size, :size] = matrix
    tiles = _tiles(padded)
    # Gauss-Jordan by tiles. It needs no pivots, since every part of such a matrix can be inverted.
    for pivot in range(len(tiles)):
        own = np.linalg.inv(tiles[pivot, pivot])
        row = own @ tiles[pivot]
        column = tiles[:, pivot].copy()
        others = [index for index in range(len(tiles)) if index != pivot]
        tiles[others] -= column[others][:, None] @ row[None]
        tiles[others, pivot] = -(column[others] @ own)
        row[pivot] = own
        tiles[pivot] = row
    return _symmetric(_matrix(tiles)[:size, :size])


def inverses(matrices: FloatArray) -> FloatArray:
    """Return the inverse of each of several symmetric matrices of one size, as :func:`inverse` does."""
    if matrices.shape[1] > _TILE:
        return np.array([inverse(matrix) for matrix in matrices])
    return _symmetric(np.linalg.inv(matrices).astype(np.float64, copy=False))


def _symmetric(matrices: FloatArray) -> FloatArray:
    """Return the matrices without the rounding by which they differ from their transposes."""
    mean: FloatArray = (matrices + matrices.swapaxes(-1, -2)) * 0.5
    return mean


def _tiles(matrix: FloatArray) -> FloatArray:
    """Return the matrix as rows of columns of tiles, filled up with zeros."""
    rows, columns = (-(-length // _TILE) for length in matrix.shape)
    padded = np.zeros((rows * _TILE, columns * _TILE))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    cut = padded.reshape(rows, _TILE, columns, _TILE).swapaxes(1, 2)
    return np.ascontiguousarray(cut)


def _matrix(tiles: FloatArray) -> FloatArray:
    rows, columns = tiles.shape[:2]
    return tiles.swapaxes(1, 2).reshape(rows * _TILE, columns * _TILE)
