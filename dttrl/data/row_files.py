"""Files of rows, read as a stream: JSON lines, a JSON list, CSV, TSV or Parquet, a dictionary a row.

:func:`read_rows` tells the format by the extension, else by the first character, and keeps the spelling that
numbers have in JSON (``NumberLiteral``): 42.0 stays "42.0", 0.10 stays "0.10", any number of digits is read.
One line or one batch of rows is in memory at a time; a JSON list is parsed whole.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dttrl.data.validation import one_line, open_parquet
from dttrl.errors import InputError

_BATCH_ROWS = 64
_HEAD_BYTES = 2**16


class Place(NamedTuple):
    """Where a row stands: file, number, and what is numbered ("line" from 1, rows from 0)."""

    path: Path
    number: int
    unit: str = "row"

    def __str__(self) -> str:
        """Return "file:line" or "file, row number"."""
        if self.unit == "line":
            return f"{self.path}:{self.number}"
        return f"{self.path}, {self.unit} {self.number}"


PlacedRow = tuple[Place, dict[str, Any]]


class NumberLiteral(str):
    """A number of a JSON file in the file's own spelling."""

    __slots__ = ()


_SPELLED: dict[str, Any] = {"parse_int": NumberLiteral, "parse_float": NumberLiteral, "parse_constant": float}
"""NaN and the infinities, which strict JSON has not, are floats."""


def lookup(row: Any, name: str) -> Any:
    """Return a field by its name, or by its path through nested fields ("reward_model.ground_truth").

    A number is an index into a list. None where there is no such field.

    >>> lookup({"doc": {"id": 3}, "a.b": 1}, "doc.id"), lookup({"a.b": 1}, "a.b"), lookup({"x": [5]}, "x.0")
    (3, 1, 5)
    """
    if isinstance(row, Mapping) and name in row:
        return row[name]
    value = row
    for part in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def read_rows(path: Path) -> Iterator[PlacedRow]:
    """Yield the rows of a file with their places; raises InputError that names file and line or row."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected one file")
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, "," if suffix == ".csv" else "\t")
    with reading(path), path.open("rb") as file:
        start = file.read(4096)
    if suffix in (".parquet", ".pq") or start.startswith(b"PAR1"):
        return parquet_rows(path)
    first = start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first == b"[":
        return _json_list_rows(path)
    if first == b"{" or suffix in (".jsonl", ".ndjson", ".json"):
        return json_lines(path, spelled=True)
    raise InputError(f"{path}: unknown format; use .jsonl, .json, .csv, .tsv or .parquet")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise InputError for what goes wrong in the block with reading ``path`` as text."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def parsed(text: str | bytes, place: Place | Path, *, spelled: bool = False) -> Any:
    """Parse JSON, numbers in their spelling with ``spelled``; raises InputError with the place."""
    try:
        return json.loads(text, **(_SPELLED if spelled else {}))
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        hint = "; expected one JSON object a line" if getattr(place, "unit", "") == "line" else ""
        raise InputError(f"{place}: bad JSON at {where} ({error.msg}){hint}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 text ({error.reason})") from error
    except RecursionError as error:
        raise InputError(f"{place}: JSON nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{place}: bad JSON ({one_line(error)})") from error


def json_object(text: str | bytes, place: Place | Path, *, spelled: bool = False) -> dict[str, Any]:
    """Parse one JSON object; raises InputError with the place."""
    return _object(parsed(text, place, spelled=spelled), place)


def _object(value: Any, place: Place | Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected a JSON object with the fields of one row")
    return value


def json_lines(path: Path, *, spelled: bool = False) -> Iterator[PlacedRow]:
    """Yield the objects of a JSON lines file with their lines; blank lines are passed over."""
    # Only \n ends a line: a JSON string may hold U+2028, which str.splitlines would cut at.
    with reading(path), path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                place = Place(path, number, "line")
                yield place, json_object(line.rstrip(), place, spelled=spelled)


def _json_list_rows(path: Path) -> Iterator[PlacedRow]:
    with reading(path):
        text = path.read_text(encoding="utf-8-sig")
    for number, row in enumerate(parsed(text, path, spelled=True)):
        yield Place(path, number), _object(row, Place(path, number))


def _csv_rows(path: Path, delimiter: str) -> Iterator[PlacedRow]:
    with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header = _csv_record(reader, path)
        if header is None:
            return
        repeated = [name for index, name in enumerate(header) if name in header[:index]]
        if repeated:
            raise InputError(f"{path}:1: column {repeated[0]!r} appears twice; rename one")
        while (record := _csv_record(reader, path)) is not None:
            place = Place(path, reader.line_num, "line")
            if len(record) != len(header):
                raise InputError(
                    f"{place}: {len(record)} fields, but the header has {len(header)}; quote commas"
                )
            yield place, dict(zip(header, record, strict=True))


def _csv_record(reader: Any, path: Path) -> list[str] | None:
    """Return the next record that is not a blank line, None at the end."""
    before = csv.field_size_limit(2**31 - 1)  # 128 kB otherwise, for the whole process: it is put back
    try:
        return next(filter(None, reader), None)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: bad CSV ({one_line(error)})") from error
    finally:
        csv.field_size_limit(before)


def parquet_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[PlacedRow]:
    """Yield the rows of a Parquet file, of the named columns (those that are there) or of all."""
    with open_parquet(path) as parquet:
        names = parquet.schema_arrow.names
        chosen = None if columns is None else [name for name in names if name in columns]
        batches = parquet.iter_batches(batch_size=_BATCH_ROWS, columns=chosen)
        for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
            yield Place(path, number), row


def head(path: Path, size: int = _HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, b"" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def fields_of(path: Path) -> set[str]:
    """Return the columns of a Parquet file or the fields of the first JSON line; none where it is neither."""
    try:
        if is_parquet(path):
            with open_parquet(path) as parquet:
                return set(parquet.schema_arrow.names)
        return set(first_object(path) or ())
    except InputError:
        return set()


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does."""
    return head(path, 4) == b"PAR1"


def first_object(path: Path) -> dict[str, Any] | None:
    """Return the first line of a file when it is a JSON object, else None."""
    if head(path, 1024).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
        return None
    try:
        return next(iter(json_lines(path)))[1]
    except (InputError, StopIteration):
        return None
