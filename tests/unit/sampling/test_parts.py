from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dttrl.data import sorting
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import TableWriter, table_from_columns
from dttrl.errors import InputError
from dttrl.sampling import parts as module
from dttrl.sampling.parts import joined

SCHEMA = ROLLOUTS.select(["step", "query_id", "sample_id", "text"])


def part(path: Path, keys: list[tuple[str, int]], *, text: str = "", row_group_bytes: int = 2**20) -> Path:
    columns = {
        "step": [None] * len(keys),
        "query_id": [key[0] for key in keys],
        "sample_id": [key[1] for key in keys],
        "text": [f"{text or path.name} {key}" for key in keys],
    }
    with TableWriter(path, SCHEMA, metadata={}, row_group_bytes=row_group_bytes) as writer:
        writer.write(table_from_columns(columns, SCHEMA))
    return path


def keys(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["query_id"].to_pylist(), table["sample_id"].to_pylist(), strict=True))


def scattered(folder: Path, parts: int, questions: int, **options: int) -> list[Path]:
    """Parts whose questions run through all ids, as questions taken by the length of their prompts do."""
    order = [f"q{i * 37 % questions:04d}" for i in range(questions)]
    held = [sorted((name, sample) for name in order[i::parts] for sample in range(4)) for i in range(parts)]
    return [part(folder / f"part-{i:03d}.parquet", rows, **options) for i, rows in enumerate(held)]


@pytest.mark.parametrize("row_group_bytes", [1, 200, 2**20])
def test_questions_come_together_in_id_order_from_any_parts(tmp_path: Path, row_group_bytes: int) -> None:
    paths = [
        part(tmp_path / "a", [("é", 3), ("b", 1), ("c", 0), ("b", 0)], row_group_bytes=row_group_bytes),
        part(tmp_path / "b", [("c", 1), ("é", 0), ("b", 9), ("é", 1), ("z", 0), ("é", 2)]),
    ]
    tables = list(joined(paths, {"é": 4, "c": 2, "b": 2}))
    assert [keys(table) for table in tables] == [
        [("b", 0), ("b", 1)],
        [("c", 0), ("c", 1)],
        [("é", 0), ("é", 1), ("é", 2), ("é", 3)],
    ]
    assert tables[1]["text"].to_pylist() == ["a ('c', 0)", "b ('c', 1)"]
    assert all(column.num_chunks == 1 for table in tables for column in table.columns)


def test_of_a_repeated_sample_the_first_part_is_taken(tmp_path: Path) -> None:
    rows = [(f"q{i}", j) for i in range(40) for j in range(9)]
    paths = [
        part(tmp_path / "a", rows[::2], row_group_bytes=300),
        part(tmp_path / "b", rows[::-1], row_group_bytes=500),
        part(tmp_path / "c", rows),
    ]
    for table in joined(paths, {f"q{i}": 9 for i in range(40)}):
        for key, text in zip(keys(table), table["text"].to_pylist(), strict=True):
            assert text == f"{'a' if rows.index(key) % 2 == 0 else 'b'} {key}"


def test_a_missing_sample_and_no_part_are_one_line(tmp_path: Path) -> None:
    path = part(tmp_path / "a", [("b", 0), ("c", 0), ("c", 2)])
    with pytest.raises(InputError, match=r"question 'c' has 1 samples of 2; run the same command again"):
        list(joined([path], {"b": 1, "c": 2}))
    with pytest.raises(InputError, match=r"question 'c' has 0 samples of 2"):
        list(joined([], {"c": 2}))


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("parts", [15, 45])
def test_what_is_read_grows_with_the_rows_and_not_with_parts_times_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, parts: int
) -> None:
    paths = scattered(tmp_path, parts, 360, row_group_bytes=2**20 if cached else 400)
    groups = sum(pa.parquet.ParquetFile(path).num_row_groups for path in paths)
    if not cached:
        monkeypatch.setattr(sorting, "CACHE_BYTES", 1)
    rows_read: list[int] = []
    read = module.read_row_group

    def counted(parquet: Any, path: Path, group: int, *columns: Any) -> pa.Table:
        table = read(parquet, path, group, *columns)
        if not columns:  # else the keys alone, once
            rows_read.append(len(table))
        return table

    monkeypatch.setattr(module, "read_row_group", counted)
    tables = list(joined(paths, {f"q{i:04d}": 4 for i in range(360)}))
    assert [key for table in tables for key in keys(table)] == [
        (f"q{i:04d}", j) for i in range(360) for j in range(4)
    ]
    if cached:
        assert len(rows_read) == groups == parts
    else:
        assert sum(rows_read) <= 4 * 360 * 4
