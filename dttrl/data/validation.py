"""Checks of a Parquet file and its columns against a schema; each failure is one line that says where.

Rows are counted from 0, as pyarrow and pandas do. What is converted without a word is what cannot change
a value: wider or narrower integers in range, floats (per-token numbers are kept as float32), integers where
text is wanted (ids, answers), whole floats where integers are wanted (pandas makes them of missing values),
dictionaries and string views, any list layout, and a column of nothing but nulls. Anything else is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dttrl.data.schemas import FORMAT_VERSION, TableSchema
from dttrl.errors import InputError

METADATA_KEY = b"dttrl"

_READ_BYTES = 2**20


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file; raises InputError for a missing, empty, foreign, truncated or damaged one."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected one Parquet file")
    try:
        # Without these two, pyarrow keeps every compressed byte it has read until the file is closed.
        parquet = pq.ParquetFile(
            path, pre_buffer=False, buffer_size=_READ_BYTES, page_checksum_verification=True
        )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(_unreadable(path, error)) from error
    try:
        yield parquet
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged, make or copy the file again ({one_line(error)})") from error
    finally:
        parquet.close()


def _unreadable(path: Path, error: Exception) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except OSError as failure:
        return f"{path}: cannot be read ({failure.strerror})"
    if not head:
        return f"{path}: empty file, expected Parquet; make or copy the file again"
    if head == b"PAR1":
        return f"{path}: truncated or damaged Parquet file, make or copy it again ({one_line(error)})"
    return f"{path}: not a Parquet file"


def one_line(shown: object) -> str:
    """Return an exception's message, or any text of a file, on one line, cut at 200 characters."""
    text = " ".join(str(shown).split())
    if not text and isinstance(shown, BaseException):
        text = type(shown).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def kind(value: Any) -> str:
    """Return what a value is, in the words of JSON."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}")


def shown(value: Any) -> str:
    """Return a value for a message, short and on one line."""
    return one_line(repr(value)[:80])


def file_metadata(parquet: Any, path: Path, stage: TableSchema | None = None) -> dict[str, Any]:
    """Return the JSON object under the key ``dttrl``, {} for other people's files; checks version, stage."""
    text = (parquet.schema_arrow.metadata or {}).get(METADATA_KEY)
    if text is None:
        return {}
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: metadata key 'dttrl' is not JSON ({one_line(error)})") from error
    if not isinstance(metadata, dict):
        raise InputError(f"{path}: metadata key 'dttrl' is not a JSON object")
    version = metadata.get("format_version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise InputError(
            f"{path}: format version {one_line(version)}, newer than {FORMAT_VERSION}; install a newer dttrl"
        )
    found = metadata.get("stage")
    if stage is not None and found is not None and found != stage.name:
        raise InputError(f"{path}: a table of {one_line(found)}, expected {stage.name}")
    return metadata


def metadata_json(metadata: Mapping[str, object], schema: pa.Schema) -> bytes:
    """Return what ``file_metadata`` reads: the entries, the format version, and the stage of the schema."""
    entries: dict[str, object] = {"format_version": FORMAT_VERSION}
    stage = (schema.metadata or {}).get(b"stage")
    if stage is not None:
        entries["stage"] = stage.decode()
    # The version is always that of this code, also where the metadata of an older input is passed on.
    return json.dumps({**metadata, **entries}, default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"metadata cannot hold {type(value).__name__}: {value!r}")


def missing_column(path: Path, name: str, stage: TableSchema, names: Sequence[str]) -> str:
    """Return the message for an absent column: the command that makes it, or the columns there are."""
    command = stage.made_by(name)
    if command and name not in stage.required:
        return f"{path}: no column {name!r}; run `{command}` first, or add the column"
    return f"{path}: no column {name!r} (columns: {one_line(', '.join(names))}); rename or add it"


def file_schema(
    found: pa.Schema, path: Path, stage: TableSchema, columns: Sequence[str] | None = None
) -> pa.Schema:
    """Return the schema that the columns of a file have once conformed: known ones as declared.

    All columns of the file when ``columns`` is None, else those and the key. Raises for a repeated or
    missing column and for a type that is not converted.
    """
    repeated = sorted({name for name in found.names if found.names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: column {repeated[0]!r} appears twice; rename or drop one")
    needed = stage.required | set(columns or ())
    for name in sorted(needed, key=lambda name: (name not in stage.required, name)):
        # A key column that need not be there (step) is made of nulls.
        if name not in found.names and name not in set(stage.key) - stage.required:
            raise InputError(missing_column(path, name, stage, found.names))
    wanted = set(found.names) if columns is None else needed | (set(stage.key) & set(found.names))
    fields = []
    for field in found:
        if field.name not in wanted:
            continue
        if field.name in stage.fields.names:
            declared = stage.fields.field(field.name)
            if not _convertible(field.type, declared.type):
                raise InputError(
                    f"{path}: column {field.name!r} is {one_line(field.type)}, expected {declared.type};"
                    " convert it"
                )
            field = declared
        fields.append(field)
    fields += [stage.fields.field(name) for name in columns or () if name not in found.names]
    return pa.schema(fields, metadata=stage.fields.metadata)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _convertible(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Say whether a type is converted silently; the values are checked when they are read."""
    types = pa.types
    if found == wanted or types.is_null(found):
        return True
    if types.is_dictionary(found):
        found = found.value_type
    if _is_list(wanted):
        return _is_list(found) and _convertible(found.value_type, wanted.value_type)
    number = types.is_integer(found) or types.is_floating(found)
    if types.is_string(wanted) or types.is_large_string(wanted):
        text = types.is_string(found) or types.is_large_string(found) or types.is_string_view(found)
        return bool(text or types.is_integer(found))
    if types.is_boolean(wanted):
        return bool(types.is_boolean(found))
    return bool(number)


def conform(table: pa.Table, schema: pa.Schema, path: Path, first_row: int = 0) -> pa.Table:
    """Return the table with exactly the columns and types of a schema; a null column where one is absent.

    ``first_row`` is the row of the file at which the table starts, for the messages. Raises InputError for
    a value that does not fit, a null in a column that may hold none, and text that is not UTF-8.
    """
    columns = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(_conform_column(table.column(field.name), field, path, first_row))
        else:
            columns.append(pa.chunked_array([pa.nulls(len(table), field.type)]))
    return pa.table(columns, schema=schema)


def _conform_column(column: pa.ChunkedArray, field: pa.Field, path: Path, first_row: int) -> pa.ChunkedArray:
    where = f"{path}: column {field.name!r}"
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InputError(f"{where}: damaged near row {first_row} ({one_line(error)})") from error
    if column.type != field.type:
        try:
            column = column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            row = _first_unfit(column, field.type)
            raise InputError(
                f"{where}, row {first_row + row}: {one_line(error)}; expected {field.type}"
            ) from error
    if not field.nullable and column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise InputError(f"{where}, row {first_row + row}: null; fill it in or drop the row")
    return column


def _first_unfit(column: pa.ChunkedArray, kind: pa.DataType) -> int:
    """Return the first row whose value cannot be cast (bisection on prefixes)."""
    low, high = 0, len(column)  # the prefix of length low fits, that of length high does not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(kind)
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
    return low


def check_distinct(paths: Sequence[Path]) -> None:
    """Raise for a file that is given twice, under whatever name."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise InputError(f"{path}: given twice")
        seen.add(path.resolve())


def check_unique(table: pa.Table, stage: TableSchema, path: Path) -> None:
    """Raise for two rows with one key; names the second of them."""
    names = [name for name in stage.key if name in table.column_names]
    if table.group_by(names).aggregate([]).num_rows == len(table):
        return
    seen: dict[tuple[Any, ...], int] = {}
    for row, key in enumerate(zip(*(table.column(name).to_pylist() for name in names), strict=True)):
        if key in seen:
            shown = ", ".join(f"{name} {value!r}" for name, value in zip(names, key, strict=True))
            raise InputError(
                f"{path}: row {row} repeats the key of row {seen[key]} ({shown}); drop one of them"
            )
        seen[key] = row
