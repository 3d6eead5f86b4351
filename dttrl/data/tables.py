"""Files of every stage: written atomically in small row groups, validated when they are read.

A table is written to a temporary file beside the target, flushed to the disk, and moved over the target in
one step: a killed process leaves the temporary file (the next writer removes it) and never half a table.
Nothing but a regular file is overwritten, and only if asked. Row groups are cut by bytes (Parquet readers
fail on a nested column over 2 GiB in one group).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dttrl.data.outputs import check_target, replacing
from dttrl.data.schemas import TableSchema
from dttrl.data.validation import (
    METADATA_KEY,
    check_unique,
    conform,
    file_metadata,
    file_schema,
    metadata_json,
    one_line,
    open_parquet,
)
from dttrl.errors import DttrlError, InputError, WorkError

ROW_GROUP_BYTES = 32 * 2**20

_UNSAFE = {0: "\ufffd", **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}


def sanitize(text: str) -> str:
    r"""Return the text with lone surrogates and NUL replaced by U+FFFD; its length stays the same.

    Arrow cannot hold a lone surrogate (models emit them through broken byte tokens), and many tools stop at
    a NUL. One character replaces one, so that token offsets into the text stay right.

    >>> sanitize("a\ud800b\x00c")
    'a\ufffdb\ufffdc'
    """
    return text if text.isascii() and "\0" not in text else text.translate(_UNSAFE)


def table_from_columns(
    columns: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]], schema: pa.Schema
) -> pa.Table:
    """Build a table of exactly the columns of a schema from lists or arrays; text is sanitised.

    None is null, NaN stays NaN. Raises InputError for a missing or unknown column and an unfit value.
    """
    differing = sorted(set(columns) ^ set(schema.names))
    if differing:
        raise InputError(f"column {differing[0]!r} is missing or unknown; columns: {', '.join(schema.names)}")
    arrays = []
    for field in schema:
        values = columns[field.name]
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            values = [sanitize(value) if isinstance(value, str) else value for value in values]
        try:
            arrays.append(pa.array(values, field.type, from_pandas=False))
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise InputError(f"column {field.name!r}: {one_line(error)}; expected {field.type}") from error
    return pa.table(arrays, schema=schema)


class TableWriter:
    """Writes one Parquet file as a stream; use it as a context manager.

    ``write`` takes tables that have the columns of ``schema`` (any order, no others). The rows become row
    groups of at most ``row_group_bytes`` of Arrow data (a single larger row is a group of its own). The file
    appears under its name when the block ends without an exception; otherwise nothing does. ``metadata`` is
    stored as JSON under the key ``dttrl``, with the format version and the stage (from the schema).

    Raises OutputExistsError at once when the path exists and ``overwrite`` is false, InputError for a path
    that is not a regular file and a bad column, WorkError when the disk refuses.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        metadata: Mapping[str, object],
        overwrite: bool = False,
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        self.path = Path(path)
        check_target(self.path, overwrite=overwrite)
        self.schema = schema
        self.num_rows = 0
        self._limit = row_group_bytes
        self._replacing = replacing(self.path, overwrite=overwrite)
        self._metadata = metadata_json(metadata, schema)
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._writer: Any = None

    def __enter__(self) -> Self:
        dictionary = [
            field.name for field in self.schema if pa.types.is_string(field.type)
        ]  # repeated short text; per-token numbers would only waste the attempt
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._replacing.__enter__(),
                self.schema.with_metadata({METADATA_KEY: self._metadata}),
                compression="zstd",
                use_dictionary=dictionary,
                write_page_checksum=True,
            )
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({one_line(error)})") from error
        return self

    def write(self, table: pa.Table) -> None:
        """Append the rows of a table; they reach the disk when a row group is full."""
        if self._writer is None:
            raise RuntimeError("TableWriter.write outside its with block")
        differing = sorted(set(table.column_names) ^ set(self.schema.names))
        if differing:
            problem = "is missing" if differing[0] in self.schema.names else "is not in the schema"
            raise InputError(f"{self.path}: column {differing[0]!r} {problem}")
        table = conform(table, self.schema, self.path, self.num_rows)
        self.num_rows += len(table)
        for piece in _pieces(table, self._limit):
            if self._waiting_bytes + piece.nbytes > self._limit:
                self._flush()
            self._waiting.append(piece)
            self._waiting_bytes += piece.nbytes

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        try:
            self._writer.write_table(rows, row_group_size=max(len(rows), 1))
        except OSError as error:
            raise WorkError(f"{self.path}: writing failed ({one_line(error)})") from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with contextlib.ExitStack() as stack:
                stack.push(self._replacing)
                stack.callback(self._close)
                if error is not None:
                    raise error
                self._flush()
                self._writer.close()
        except OSError as failure:
            if failure is error or isinstance(failure, DttrlError):
                raise
            raise WorkError(f"{self.path}: writing failed ({one_line(failure)})") from failure

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        with contextlib.suppress(OSError, pa.ArrowException):
            writer.close()


def _pieces(table: pa.Table, limit: int) -> Iterator[pa.Table]:
    """Cut a table into slices of at most ``limit`` bytes, by halving; one row is never cut."""
    if len(table) <= 1 or table.nbytes <= limit:
        if len(table):
            yield table
        return
    half = len(table) // 2
    yield from _pieces(table.slice(0, half), limit)
    yield from _pieces(table.slice(half), limit)


def write_table(
    path: Path,
    table: pa.Table,
    stage: TableSchema,
    *,
    metadata: Mapping[str, object],
    overwrite: bool = False,
) -> None:
    """Write a whole table of one stage, its columns in the order of the schema.

    Raises InputError for a missing or unknown column, an unfit value, a null where none may be and a repeated
    key; OutputExistsError; WorkError.
    """
    path = Path(path)
    schema = stage.select(table.column_names)
    absent = sorted(stage.required - set(table.column_names))
    if absent:
        raise InputError(f"{path}: column {absent[0]!r} is missing from the {stage.name} table")
    with TableWriter(path, schema, metadata=metadata, overwrite=overwrite) as writer:
        table = conform(table, schema, path)
        check_unique(table, stage, path)
        writer.write(table)


def read_table(path: Path, stage: TableSchema, *, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a small table whole and check it: columns, types, nulls, unique key.

    Returns all columns of the file, those that the schema does not know included; with ``columns``, exactly
    those, in that order. Raises InputError.
    """
    path = Path(path)
    with open_parquet(path) as parquet:
        file_metadata(parquet, path, stage)
        schema = file_schema(parquet.schema_arrow, path, stage, columns)
        names = [name for name in schema.names if name in parquet.schema_arrow.names]
        table = conform(parquet.read(columns=names), schema, path)
    check_unique(table, stage, path)
    return table if columns is None else table.select(list(columns))


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a file of ours, {} for other people's Parquet files; raises InputError."""
    path = Path(path)
    with open_parquet(path) as parquet:
        return file_metadata(parquet, path)
