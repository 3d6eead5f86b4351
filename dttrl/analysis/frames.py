"""Result tables as files: CSV or Parquet by the file's ending, replaced whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from dttrl.errors import InputError
from dttrl.outputs import check_new_file, replacing

SUFFIXES = (".csv", ".parquet")


def check_output(path: Path, *, overwrite: bool, inputs: Sequence[Path] = ()) -> None:
    """Raise before any work when ``path`` has an unknown ending, exists, or lies in no folder.

    One of ``inputs`` may not be written even with ``overwrite``, nor a Parquet file in a folder among them:
    it would be the folder's own or be read as one more part of it.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: unknown kind of table, name it *.csv or *.parquet")
    target = path.resolve()
    for given in inputs:
        if given.exists() and (target == given.resolve() or (path.exists() and path.samefile(given))):
            raise InputError(f"{path}: is one of the inputs; write to another file")
        if path.suffix.lower() == ".parquet" and given.is_dir() and given.resolve() in target.parents:
            raise InputError(f"{path}: lies in the input folder {given}; write elsewhere")
    check_new_file(path, overwrite=overwrite)


def write_frame(path: Path, table: pa.Table, *, overwrite: bool = False) -> None:
    """Write ``table`` to ``path`` (CSV or Parquet) through a temporary file beside it."""
    check_output(path, overwrite=overwrite)
    with replacing(path) as temporary:
        if path.suffix.lower() == ".csv":
            from pyarrow import csv

            csv.write_csv(table, temporary)
        else:
            from pyarrow import parquet

            parquet.write_table(table, temporary, compression="zstd")
