"""An external sort: rows gathered in the order of their keys from pieces of files, few of them in memory.

The keys, some numbers a row, are sorted in memory; the rows themselves stay where they are (in the row groups
of Parquet files, the batches of an Arrow file) until a block of the output takes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

CACHE_BYTES = 64 * 2**20
"""Pieces kept in memory, since neighbours in the order often share them."""


def sorted_rows(
    keys: Sequence[NDArray[np.int64]], *, unique: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the rows (N,) in the order of their keys, the first key first, rows of equal keys as they came.

    Also whether each row (in that order) equals the one before it in the first ``unique`` keys.
    """
    order_N = np.lexsort(tuple(reversed(keys)))
    same_N = np.zeros(len(order_N), np.bool_)
    ordered = [key[order_N] for key in keys[:unique]]
    same_N[1:] = np.all([key[1:] == key[:-1] for key in ordered], axis=0)
    return order_N, same_N


class Pieces:
    """Numbered tables, each read by ``read`` when a row of it is taken; the last ones read are kept."""

    def __init__(self, read: Callable[[int], pa.Table]) -> None:
        self._read = read
        self._kept: OrderedDict[int, pa.Table] = OrderedDict()
        self._bytes = 0

    def take(self, piece_N: NDArray[np.int64], row_N: NDArray[np.int64]) -> pa.Table:
        """Return row ``row_N[i]`` of piece ``piece_N[i]`` for each i, in that order."""
        by_piece_N = np.argsort(piece_N, kind="stable")
        pieces, starts = np.unique(piece_N[by_piece_N], return_index=True)
        found = [
            self._piece(piece).take(row_N[rows])
            for piece, rows in zip(pieces.tolist(), np.split(by_piece_N, starts[1:]), strict=True)
        ]
        # One chunk: chunks would show in the pages of the output, and so how the pieces were cut.
        return pa.concat_tables(found).combine_chunks().take(np.argsort(by_piece_N))

    def _piece(self, number: int) -> pa.Table:
        if number not in self._kept:
            self._kept[number] = self._read(number)
            self._bytes += self._kept[number].nbytes
            while self._bytes > CACHE_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        self._kept.move_to_end(number)
        return self._kept[number]
