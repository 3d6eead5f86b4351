"""Files read as streams of JSON-like rows: JSON lines a line at a time, Parquet a batch at a time.

Numbers are plain numbers here (``question_files`` keeps their spelling instead). One JSON line or one batch
of rows is in memory at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dttrl.errors import InputError
from dttrl.interop.records import Place
from dttrl.validation import one_line, open_parquet

Row = tuple[Place, dict[str, Any]]

_BATCH_ROWS = 64
_HEAD_BYTES = 2**16


def json_lines(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSON lines file with their lines; blank lines are passed over."""
    try:
        # Only \n ends a line: a JSON string may hold U+2028, which str.splitlines would cut at.
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = Place(path, number, "line")
                    yield place, parse_object(line, place)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def parse_object(text: str | bytes, place: Place | Path) -> dict[str, Any]:
    """Parse one JSON object; raises InputError with the place."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise InputError(f"{place}: bad JSON at {where} ({error.msg})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8 text ({error.reason})") from error
    except RecursionError as error:
        raise InputError(f"{place}: JSON nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{place}: bad JSON ({one_line(error)})") from error
    if not isinstance(value, dict):
        raise InputError(f"{place}: expected a JSON object")
    return value


def parquet_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield the rows of a Parquet file, of the named columns (those that are there) or of all."""
    with open_parquet(path) as parquet:
        names = parquet.schema_arrow.names
        chosen = None if columns is None else [name for name in names if name in columns]
        number = 0
        for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, columns=chosen):
            for row in batch.to_pylist():
                yield Place(path, number), row
                number += 1


def parquet_fields(path: Path) -> dict[str, Any]:
    """Return the columns of a Parquet file with their types; {} for a file that is none."""
    try:
        with open_parquet(path) as parquet:
            return {field.name: field.type for field in parquet.schema_arrow}
    except InputError:
        return {}


def head(path: Path, size: int = _HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, b"" where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet does."""
    return head(path, 4) == b"PAR1"


def first_object(path: Path) -> dict[str, Any] | None:
    """Return the first line of a file when it is a JSON object, else None."""
    start = head(path, 1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] != b"{":
        return None
    try:
        return next(iter(json_lines(path)))[1]
    except (InputError, StopIteration):
        return None
