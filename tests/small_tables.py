"""Small tables of ours, and files as other people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dttrl.data.schemas import HISTORY
from dttrl.data.tables import table_from_columns


def history(n: int = 4) -> pa.Table:
    columns: dict[str, Any] = {
        "step": [0] * n,
        "query_id": ["q"] * n,
        "sample_id": list(range(n)),
        "confidence": np.linspace(1, 2, n),
        "midpoint": [1.5] * n,
    }
    return table_from_columns(columns, HISTORY.fields)


def write_raw(path: Path, columns: dict[str, Any], metadata: bytes | None = None) -> Path:
    """Write a file as other people do: types inferred, no metadata of ours."""
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"dttrl": metadata})
    pq.write_table(table, path)
    return path
