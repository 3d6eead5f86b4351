from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.data import sorting
from dttrl.data.sorting import Pieces, sorted_rows

ROWS = st.lists(st.tuples(*[st.integers(-2, 2)] * 3), max_size=30)


@given(ROWS, st.integers(1, 3))
def test_rows_are_sorted_as_tuples_are_and_equal_ones_stay_in_order(rows: list[Any], unique: int) -> None:
    keys = np.array(rows, np.int64).reshape(-1, 3).T
    order, repeats = sorted_rows(tuple(keys), unique=unique)
    assert order.tolist() == sorted(range(len(rows)), key=lambda i: rows[i])
    ordered = [rows[i][:unique] for i in order]
    assert repeats.tolist() == [i > 0 and ordered[i] == ordered[i - 1] for i in range(len(rows))]


def pieces_of(sizes: list[int]) -> tuple[list[pa.Table], list[int]]:
    starts = np.cumsum([0, *sizes]).tolist()
    names = [pa.array([f"{i}" * 9 for i in range(a, a + n)]) for a, n in zip(starts, sizes, strict=False)]
    return [pa.table({"row": column}) for column in names], starts


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_rows_come_in_the_order_asked_for_as_one_chunk(sizes: list[int], data: st.DataObject) -> None:
    tables, starts = pieces_of(sizes)
    places = [(piece, row) for piece, size in enumerate(sizes) for row in range(size)]
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=1))
    piece_N, row_N = np.array(chosen, np.int64).T
    table = Pieces(tables.__getitem__).take(piece_N, row_N)
    assert table["row"].to_pylist() == [f"{starts[piece] + row}" * 9 for piece, row in chosen]
    assert table["row"].num_chunks == 1


def test_no_more_than_the_bound_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, _ = pieces_of([40] * 8)
    monkeypatch.setattr(sorting, "CACHE_BYTES", 3 * max(table.nbytes for table in tables))
    reads: list[int] = []

    def read(number: int) -> pa.Table:
        reads.append(number)
        return tables[number]

    pieces = Pieces(read)
    for number in (0, 3, 0, 5, 1, 2, 4, 0, 0):
        pieces.take(np.array([number]), np.array([1]))
        assert pieces._bytes == sum(table.nbytes for table in pieces._kept.values())
        assert 0 < pieces._bytes <= sorting.CACHE_BYTES
    assert reads == [0, 3, 5, 1, 2, 4, 0]  # 0 was used again before it had to go, and later went
