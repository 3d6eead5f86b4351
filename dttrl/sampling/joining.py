"""The rows of unfinished generations, brought together question by question: each part is read about once.

The parts hold the questions in the order in which they finished; the output holds them by id. An index of the
key columns says in which row groups the rows of a question lie, and only those are read. Parts are written in
small row groups sorted by question, so that a question costs its own rows and little more, and the row groups
that were read last are kept (up to ``CACHE_BYTES``), since neighbours in id order often share them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dttrl.errors import InputError
from dttrl.schemas import ROLLOUTS
from dttrl.validation import conform, file_schema, open_parquet

CACHE_BYTES = 64 * 2**20
"""Row groups kept in memory while parts are joined."""

# Columns of the index: rank of the question, sample, part, row group, row in the group.
_QUESTION, _SAMPLE, _PART, _GROUP, _ROW = range(5)


def joined(paths: Sequence[Path], wanted: Mapping[str, int]) -> Iterator[pa.Table]:
    """Yield the rows of each wanted question, in id order: samples 0 to the wanted number, one row each.

    Where two parts hold the same sample, the row of the earlier part is taken. Raises InputError for a sample
    that no part holds and a part that is damaged.
    """
    ids = sorted(wanted)
    index = _index(paths, ids, np.array([wanted[query_id] for query_id in ids], dtype=np.int64))
    groups = _RowGroups(paths)
    bounds = np.searchsorted(index[_QUESTION], np.arange(len(ids) + 1))
    for rank, query_id in enumerate(ids):
        start, stop = bounds[rank], bounds[rank + 1]
        if stop - start != wanted[query_id]:
            where = paths[0].parent if paths else "no parts"
            raise InputError(
                f"{where}: question {query_id!r} has {stop - start} samples of {wanted[query_id]}; "
                "run the same command again"
            )
        if start < stop:
            yield groups.take(index[_PART:, start:stop])


def _index(paths: Sequence[Path], ids: Sequence[str], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the (5, rows) index of the wanted rows, sorted by question and sample, no sample twice."""
    known = pa.array(ids, pa.string())
    found = [np.empty((5, 0), dtype=np.int64)]
    for part, path in enumerate(paths):
        for group, table in enumerate(_key_columns(path)):
            question = pc.fill_null(pc.index_in(table.column("query_id"), value_set=known), -1).to_numpy()
            sample = table.column("sample_id").to_numpy().astype(np.int64)
            rows = np.flatnonzero((question >= 0) & (sample < wanted[question]))
            places = [question[rows], sample[rows], np.full(len(rows), part), np.full(len(rows), group), rows]
            found.append(np.stack(places).astype(np.int64))
    index = np.concatenate(found, axis=1)
    index = index[:, np.lexsort(index[::-1])]  # all five columns are keys: the order leaves nothing open
    same = np.all(index[:_PART, 1:] == index[:_PART, :-1], axis=0)
    return index[:, np.concatenate([np.ones(min(1, index.shape[1]), dtype=bool), ~same])]


def _key_columns(path: Path) -> Iterator[pa.Table]:
    """Yield query_id and sample_id of each row group of a part."""
    with open_parquet(path) as parquet:
        schema = file_schema(parquet.schema_arrow, path, ROLLOUTS, ["query_id", "sample_id"])
        for group in range(parquet.num_row_groups):
            yield conform(parquet.read_row_group(group, columns=schema.names), schema, path)


class _RowGroups:
    """Row groups of the parts, read when they are needed; the last ones read are kept."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._kept: OrderedDict[tuple[int, int], pa.Table] = OrderedDict()
        self._bytes = 0

    def take(self, places: NDArray[np.int64]) -> pa.Table:
        """Return the rows at (part, group, row) in the order of the columns of ``places``, as one chunk."""
        pieces, positions = [], []
        for part, group in np.unique(places[:2], axis=1).T.tolist():
            here = np.flatnonzero((places[0] == part) & (places[1] == group))
            pieces.append(self._table(part, group).take(places[2, here]))
            positions.append(here)
        table = pa.concat_tables(pieces).take(np.argsort(np.concatenate(positions)))
        # Chunks would show in the pages of the output, and so how often the work was interrupted.
        return table.combine_chunks()

    def _table(self, part: int, group: int) -> pa.Table:
        key = (part, group)
        if key not in self._kept:
            table = read_row_group(self._paths[part], group)
            self._bytes += table.nbytes
            self._kept[key] = table
            while self._bytes > CACHE_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
        self._kept.move_to_end(key)
        return self._kept[key]


def read_row_group(path: Path, group: int) -> pa.Table:
    """Read one row group of a part; raises InputError for a damaged one."""
    with open_parquet(path) as parquet:
        schema = file_schema(parquet.schema_arrow, path, ROLLOUTS)
        return conform(parquet.read_row_group(group, columns=schema.names), schema, path)
