"""Rows of question files as dictionaries: JSON lines, a JSON list, CSV, TSV or Parquet.

Numbers keep the spelling of the file (``NumberLiteral``): 42.0 stays "42.0", 0.10 stays "0.10", and a number
of any length is read. The format is told by the extension, else by the first character.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from dttrl.errors import InputError
from dttrl.validation import one_line, open_parquet

Row = tuple[str, dict[str, Any]]
"""Where a row stands ("questions.jsonl:3") and its fields."""


class NumberLiteral(str):
    """A number of a JSON file in the file's own spelling."""

    __slots__ = ()


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a question file; raises InputError that names file and line or row."""
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected one question file")
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return _parquet_rows(path)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, "," if suffix == ".csv" else "\t")
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if head.startswith(b"PAR1"):
        return _parquet_rows(path)
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first == b"[":
        return _json_list_rows(path)
    if first == b"{" or suffix in (".jsonl", ".ndjson", ".json"):
        return _json_line_rows(path)
    raise InputError(f"{path}: unknown format; use .jsonl, .json, .csv, .tsv or .parquet")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _parse(text: str, where: str, hint: str = "") -> Any:
    try:
        return json.loads(text, parse_int=NumberLiteral, parse_float=NumberLiteral, parse_constant=_constant)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise InputError(f"{where}: bad JSON at {place} ({error.msg}){hint}") from error
    except RecursionError as error:
        raise InputError(f"{where}: JSON nested too deeply") from error


def _constant(name: str) -> float:
    return float(name)  # NaN and the infinities, which strict JSON has not


def _json_line_rows(path: Path) -> Iterator[Row]:
    # Only \n ends a line: a JSON string may hold U+2028, which str.splitlines would cut at.
    with _reading(path), path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}:{number}"
                yield where, _object(_parse(line.rstrip(), where, "; expected one JSON object a line"), where)


def _json_list_rows(path: Path) -> Iterator[Row]:
    with _reading(path):
        text = path.read_text(encoding="utf-8-sig")
    for number, row in enumerate(_parse(text, str(path))):
        where = f"{path}, row {number}"
        yield where, _object(row, where)


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object with the fields of one question")
    return value


@contextmanager
def _large_fields() -> Iterator[None]:
    # The csv module's limit (128 kB a field) is one of the process: it is put back.
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _csv_rows(path: Path, delimiter: str) -> Iterator[Row]:
    with _reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header = _csv_record(reader, path)
        if header is None:
            return
        repeated = [name for index, name in enumerate(header) if name in header[:index]]
        if repeated:
            raise InputError(f"{path}:1: column {repeated[0]!r} appears twice; rename one")
        while (record := _csv_record(reader, path)) is not None:
            where = f"{path}:{reader.line_num}"
            if len(record) != len(header):
                raise InputError(
                    f"{where}: {len(record)} fields, but the header has {len(header)}; quote commas"
                )
            yield where, dict(zip(header, record, strict=True))


def _csv_record(reader: Any, path: Path) -> list[str] | None:
    """Return the next record that is not a blank line, None at the end."""
    try:
        with _large_fields():
            return next((record for record in reader if record), None)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: bad CSV ({one_line(error)})") from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    with open_parquet(path) as parquet:
        batches = (batch.to_pylist() for batch in parquet.iter_batches(batch_size=256))
        for number, row in enumerate(chain.from_iterable(batches)):
            yield f"{path}, row {number}", row
