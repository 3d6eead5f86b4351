"""Rollout files read as a stream: whole questions at a time, never the whole file.

Reads files of ours and of other people: ``query_id`` and ``sample_id`` are all that must be there; what a
command needs beyond them it asks for with ``require``. The rows of a question lie together (they may straddle
row groups and parts); the order of the questions is free. Rows are counted from 0 in the messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dttrl.data.schemas import KEY_COLUMNS, ROLLOUTS
from dttrl.data.sorting import sorted_rows
from dttrl.data.validation import (
    check_distinct,
    conform,
    file_metadata,
    file_schema,
    missing_column,
    one_line,
    open_parquet,
)
from dttrl.errors import InputError

COMPATIBLE_METADATA = (
    "format_version",
    "model",
    "temperature",
    "top_p",
    "top_k",
    "k",
    "logprobs_mode",
    "entropy",
    "measure",
    "region",
    "answer_kind",
    "last_number",
    "template",
)

_BATCH_BYTES = 8 * 2**20
_BATCH_ROWS = 4096
_NO_STEP = -(2**40)  # outside int32: stands for a null step where steps are compared

Key = tuple[int | None, str]


@dataclass(frozen=True)
class RolloutBlock:
    """The rollouts of Q whole questions that follow each other in the files, sorted by sample_id in each.

    A question is one (step, query_id); step is None offline.
    """

    table: pa.Table
    start_Q: NDArray[np.int64]
    """Row at which each question starts; (Q + 1,), the last being the number of rows."""
    step: list[int | None]
    query_id: list[str]


class RolloutFiles:
    """Rollout files and folders of parts, checked against the ROLLOUTS schema and read question by question.

    A folder stands for the ``*.parquet`` files in it, in natural order (part-2 before part-10); a run folder
    for its ``rollouts/``. Files must agree on their columns and on the entries of COMPATIBLE_METADATA;
    a file without our metadata is not mixed with one that has it.

    Raises InputError when nothing is there, a file is unreadable, is another stage's table, lacks a
    column, has one of a wrong type or disagrees with another file, and when there is no row at all.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths, self._folders = _expand(paths)
        self._rows: list[int] = []
        self._schemas: list[pa.Schema] = []
        metadata: list[dict[str, Any]] = []
        for path in self.paths:
            with open_parquet(path) as parquet:
                metadata.append(file_metadata(parquet, path, ROLLOUTS))
                self._schemas.append(file_schema(parquet.schema_arrow, path, ROLLOUTS))
                self._rows.append(parquet.metadata.num_rows)
        if not self.num_rows:
            raise InputError(f"{self.paths[0]}: holds no rollouts")
        self.metadata = self._merge(metadata)
        """The metadata entries on which all files agree; {} for other people's files."""
        self.schema = self._common_schema()
        """The schema of the tables of ``blocks()``; has step, query_id and sample_id always."""

    @property
    def column_names(self) -> list[str]:
        """The columns of the tables of ``blocks()``."""
        return list(self.schema.names)

    @property
    def num_rows(self) -> int:
        """The number of rollouts in all files."""
        return sum(self._rows)

    def _merge(self, metadata: list[dict[str, Any]]) -> dict[str, Any]:
        first = metadata[0]
        for path, other in zip(self.paths[1:], metadata[1:], strict=True):
            for name in COMPATIBLE_METADATA:
                if first.get(name) != other.get(name):
                    raise InputError(
                        f"{path}: {name} is {other.get(name, 'not said')}, but {first.get(name, 'not said')}"
                        f" in {self.paths[0]}; do not mix them, read them one by one"
                    )
        return {
            name: value
            for name, value in first.items()
            if all(name in other and other[name] == value for other in metadata)
        }

    def _common_schema(self) -> pa.Schema:
        first = self._schemas[0]
        for path, other in zip(self.paths[1:], self._schemas[1:], strict=True):
            differing = sorted(set(first.names) ^ set(other.names))
            if differing:
                here, there = (path, self.paths[0]) if differing[0] in other.names else (self.paths[0], path)
                raise InputError(f"{there}: no column {differing[0]!r}, but {here} has it; do not mix them")
            for field in first:
                if not other.field(field.name).equals(field):
                    raise InputError(
                        f"{path}: column {field.name!r} is {one_line(other.field(field.name).type)},"
                        f" but {one_line(field.type)}"
                        f" in {self.paths[0]}; convert one of them"
                    )
        keys = [ROLLOUTS.fields.field(name) for name in KEY_COLUMNS]
        others = [field for field in first if field.name not in KEY_COLUMNS]
        return pa.schema([*keys, *others], metadata=ROLLOUTS.fields.metadata)

    def require(self, *columns: str) -> None:
        """Raise InputError for the first of the columns that is absent; says which command makes it."""
        for name in columns:
            if name not in self.schema.names:
                raise InputError(missing_column(self.paths[0], name, ROLLOUTS, self.column_names))

    def check_output(self, output: Path, *, keeps_rows: bool = False) -> None:
        """Raise InputError when writing ``output`` would damage the input.

        Replacing an input destroys it; only the single input of a command whose output ``keeps_rows`` (and
        adds to them) may be replaced. A new file in an input folder would be read as one more part.
        """
        target = output.resolve()
        inputs = [path.resolve() for path in self.paths]
        if target in inputs and not (keeps_rows and len(inputs) == 1):
            raise InputError(f"{output}: is one of the input files; write to another file")
        if target.parent in self._folders:
            raise InputError(f"{output}: would become a part of the input folder; write elsewhere")

    def blocks(self, columns: Sequence[str] | None, *, rows: int = 2**16) -> Iterator[RolloutBlock]:
        """Yield the rollouts of the next questions, about ``rows`` of them at a time, in file order.

        ``columns`` narrows what is read; the key columns always come. Raises InputError for a null or unfit
        value, a repeated key, a question whose rows do not lie together, and damaged data.
        """
        schema = self.schema
        if columns is not None:
            self.require(*columns)
            fields = [field for field in schema if field.name in {*KEY_COLUMNS, *columns}]
            schema = pa.schema(fields, metadata=schema.metadata)
        seen: set[Key] = set()
        tables: list[pa.Table] = []
        first = 0  # number of the first of their rows, counted over all files
        for path in self.paths:
            for batch in _batches(path, schema, rows):
                tables.append(batch)
                if sum(map(len, tables)) > rows:
                    table = pa.concat_tables(tables)
                    starts = _starts(table)
                    whole = int(starts[-1])  # the last question may go on in the next batch
                    if whole:
                        yield self._block(table.slice(0, whole), starts[:-1], first, seen)
                    tables, first = [table.slice(whole)], first + whole
        if tables:
            table = pa.concat_tables(tables)
            yield self._block(table, _starts(table), first, seen)

    def _block(self, table: pa.Table, starts: NDArray[np.int64], first: int, seen: set[Key]) -> RolloutBlock:
        """Check the keys of whole questions, put each into sample order and refuse a repeated sample."""
        steps = table.column("step").take(starts).to_pylist()
        queries = table.column("query_id").take(starts).to_pylist()
        for key, start in zip(zip(steps, queries, strict=True), starts.tolist(), strict=True):
            if key in seen:
                raise InputError(
                    f"{self._place(first + start)}: {_shown(key)} appears again after other questions;"
                    " sort the rows by step, query_id, sample_id"
                )
            seen.add(key)
        ends = np.append(starts, len(table))
        sample = table.column("sample_id").to_numpy()
        question = np.repeat(np.arange(len(starts)), np.diff(ends))
        if (np.diff(question * 2**32 + sample) <= 0).any():  # most files are in order
            order, repeats = sorted_rows((question, sample), unique=2)
            if repeats.any():
                row = int(order[np.argmax(repeats)])
                key = steps[question[row]], queries[question[row]]
                raise InputError(
                    f"{self._place(first + row)} repeats {_shown(key)}, sample_id {sample[row]};"
                    " drop one of them"
                )
            table = table.take(order)
        return RolloutBlock(table, ends, steps, queries)

    def _place(self, row: int) -> str:
        """Return file and row of a row that is counted over all files."""
        for path, count in zip(self.paths, self._rows, strict=True):
            if row < count:
                return f"{path}: row {row}"
            row -= count
        raise AssertionError(row)


def _expand(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files behind the arguments, in order, and the folders among them."""
    files: list[Path] = []
    folders: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        folder = path / "rollouts" if (path / "rollouts").is_dir() else path
        parts = sorted((p for p in folder.glob("*.parquet") if not p.name.startswith(".")), key=_natural)
        if not parts:
            raise InputError(f"{folder}: no *.parquet files in this folder")
        folders.append(folder.resolve())
        files.extend(parts)
    if not files:
        raise InputError("no rollout files were given")
    check_distinct(files)
    return files, folders


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"([0-9]+)", path.name)
    return [(int(part), "") if index % 2 else (-1, part) for index, part in enumerate(parts)]


def _batches(path: Path, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """Yield the conformed rows of a file in batches of about ``rows`` rows, fewer where those are large."""
    first_row = 0
    with open_parquet(path) as parquet:
        names = [name for name in schema.names if name in parquet.schema_arrow.names]
        size = _batch_rows(parquet.metadata, schema)
        size = max(size, rows) if size == _BATCH_ROWS else size
        for batch in parquet.iter_batches(batch_size=size, columns=names):
            if len(batch):
                yield conform(pa.Table.from_batches([batch]), schema, path, first_row)
                first_row += len(batch)


def _batch_rows(metadata: Any, schema: pa.Schema) -> int:
    """Return how many rows are decoded at a time: about 8 MiB where text or per-token numbers are read.

    Sizes of single columns would be exact, but asking pyarrow for them ends the process on a damaged footer.
    """
    if not any(_may_be_large(field) for field in schema):
        return _BATCH_ROWS
    size = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    per_row = max(size / max(metadata.num_rows, 1), 1)
    return int(min(max(_BATCH_BYTES / per_row, 1), _BATCH_ROWS))


def _may_be_large(field: pa.Field) -> bool:
    if field.name not in ROLLOUTS.fields.names:
        return not pa.types.is_primitive(field.type)
    return bool(pa.types.is_large_string(field.type) or pa.types.is_list(field.type))


def _starts(table: pa.Table) -> NDArray[np.int64]:
    """Return the rows at which another (step, query_id) starts, the first among them."""
    step = pc.fill_null(pc.cast(table.column("step"), pa.int64()), _NO_STEP).to_numpy()
    query = table.column("query_id")
    changes = pc.not_equal(query.slice(1), query.slice(0, len(query) - 1)).to_numpy()
    starts: NDArray[np.int64] = np.flatnonzero(np.append(True, changes | (step[1:] != step[:-1])))
    return starts


def _shown(key: Key) -> str:
    return f"query_id {key[1]!r}" + ("" if key[0] is None else f", step {key[0]}")
