"""Result tables: pandas frames, and as files CSV or Parquet, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from dttrl.analysis.accuracy import Estimate
from dttrl.data.outputs import check_new_file, replacing
from dttrl.errors import InputError

SUFFIXES = (".csv", ".parquet")


def frame(rows: Iterable[Mapping[str, Any]], **kinds: str) -> pd.DataFrame:
    """Return rows as a table; an :class:`Estimate` becomes three columns, its interval in _low and _high.

    ``kinds`` are the types of columns that values do not tell, such as whole numbers that may be missing.

    >>> frame([{"a": Estimate(0.5, 0.25, 1.0), "n": None}], n="Int64").columns.to_list()
    ['a', 'a_low', 'a_high', 'n']
    """
    flat: list[dict[str, Any]] = []
    for row in rows:
        flat.append({})
        for name, value in row.items():
            if isinstance(value, Estimate):
                flat[-1] |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            else:
                flat[-1][name] = value
    return pd.DataFrame(flat).astype(kinds)


def arrow(frame: pd.DataFrame) -> pa.Table:
    """Return a frame as it is written and as its JSON is made: plain types, null for what is missing."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    # Text is large_string or string by the version of pandas.
    texts = pa.types.is_large_string
    plain = [field.with_type(pa.string()) if texts(field.type) else field for field in table.schema]
    return table.cast(pa.schema(plain))


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


def write_frame(path: Path, frame: pd.DataFrame, *, overwrite: bool = False) -> None:
    """Write a frame to ``path`` (CSV or Parquet) through a temporary file beside it."""
    from pyarrow import csv, parquet

    check_output(path, overwrite=overwrite)
    with replacing(path) as temporary:
        if path.suffix.lower() == ".csv":
            csv.write_csv(arrow(frame), temporary)
        else:
            parquet.write_table(arrow(frame), temporary, compression="zstd")
