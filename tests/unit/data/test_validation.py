from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import HISTORY, LABELS, ROLLOUTS
from dttrl.data.tables import read_metadata, read_table, write_table
from dttrl.errors import InputError
from tests.rollout_groups import read_groups
from tests.small_tables import history, write_raw


def rows(*keys: tuple[int | None, str, int], **columns: Any) -> dict[str, Any]:
    steps = pa.array([key[0] for key in keys], pa.int64())
    return {
        "step": steps,
        "query_id": [key[1] for key in keys],
        "sample_id": [key[2] for key in keys],
        **columns,
    }


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# --- unreadable files


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    good = tmp_path / "good.parquet"
    write_table(good, history(), HISTORY, metadata={})
    content = good.read_bytes()
    cases = {
        "empty": (b"", "empty file"),
        "text": (b"query_id,sample_id\nq,1\n", "not a Parquet file"),
        "short": (content[:3], "not a Parquet file"),
        "half": (content[: len(content) // 2], "truncated or damaged"),
        "tail": (content[:-1], "truncated or damaged"),
    }
    for name, (data, text) in cases.items():
        path = tmp_path / name
        path.write_bytes(data)
        for read in (read_metadata, lambda p: read_table(p, HISTORY), lambda p: RolloutFiles([p])):
            with pytest.raises(InputError, match=text) as error:
                read(path)
            assert message(error).startswith(f"{path}: ")
    with pytest.raises(InputError, match="no such file"):
        read_metadata(tmp_path / "absent")
    with pytest.raises(InputError, match="is a folder"):
        read_metadata(tmp_path)


def read_or_refuse(path: Path) -> list[dict[str, Any]] | str:
    try:
        return [row for group in read_groups(RolloutFiles([path])) for row in group.table.to_pylist()]
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("ours", [True, False])
def test_damaged_data_is_refused_in_one_line(tmp_path: Path, ours: bool) -> None:
    columns = rows(*[(0, f"q{i // 8}", i % 8) for i in range(64)], text=[f"text {i}" * 9 for i in range(64)])
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    write_raw(good, columns)
    if ours:
        write_table(good, read_table(good, ROLLOUTS), ROLLOUTS, metadata={}, overwrite=True)
    content, expected = good.read_bytes(), read_or_refuse(good)
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        data = bytearray(content)
        data[int(generator.integers(4, len(data) - 8))] ^= int(generator.integers(1, 256))
        bad.write_bytes(data)
        found = read_or_refuse(bad)
        if isinstance(found, str):
            assert "\n" not in found
            assert "bad.parquet" in found
            refused += 1
        elif ours:  # pages carry check sums: a changed value is never taken for data
            assert found == expected
    assert refused > 10


def test_metadata_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    columns = rows((0, "a", 0))
    for text, expected in [
        (b"{", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"format_version": 99}', "format version 99"),
        (b'{"format_version": "x"}', "format version x"),
    ]:
        with pytest.raises(InputError, match=expected):
            read_metadata(write_raw(tmp_path / "m.parquet", columns, text))
    assert read_metadata(write_raw(tmp_path / "m.parquet", columns)) == {}
    with pytest.raises(InputError, match="a table of votes, expected rollouts"):
        RolloutFiles([write_raw(tmp_path / "m.parquet", columns, b'{"stage": "votes"}')])


# --- validation of small tables


def test_read_table_gives_the_columns_asked_in_that_order(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    write_table(path, history(), HISTORY, metadata={})
    assert read_table(path, HISTORY, columns=["confidence", "query_id"]).column_names == [
        "confidence",
        "query_id",
    ]
    assert read_table(path, HISTORY).equals(history(), check_metadata=False)
    with pytest.raises(InputError, match=r"no column 'pace' \(columns: step, query_id"):
        read_table(path, HISTORY, columns=["pace"])
    with pytest.raises(InputError, match="a table of history, expected labels"):
        read_table(path, LABELS)


def test_missing_step_reads_as_null(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "r.parquet", {"query_id": ["a"], "sample_id": [0]})
    assert read_table(path, ROLLOUTS, columns=["step", "query_id"]).to_pylist() == [
        {"step": None, "query_id": "a"}
    ]


def test_read_table_finds_duplicates_and_nulls(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "r.parquet", rows((0, "a", 0), (None, "a", 0), (1, "a", 0), (None, "a", 0)))
    with pytest.raises(
        InputError, match=r"row 3 repeats the key of row 1 .step None, query_id 'a', sample_id 0"
    ):
        read_table(path, ROLLOUTS)
    path = write_raw(tmp_path / "r.parquet", {"query_id": ["a", None], "sample_id": [0, 1]})
    with pytest.raises(InputError, match="column 'query_id', row 1: null"):
        read_table(path, ROLLOUTS)


def test_harmless_types_are_accepted(tmp_path: Path) -> None:
    columns = {
        "query_id": pa.array(["7", "7"]).dictionary_encode(),
        "sample_id": pa.array([0.0, 1.0]),  # pandas, after a missing value
        "step": pa.array([3, 3], pa.uint64()),
        "text": pa.array(["a", "b"]),
        "answer": pa.array([42, None]),
        "gold": pa.nulls(2),
        "confidence": pa.array([1.5, None], pa.float32()),
        "token_confidence": pa.array([[1.25, None, -np.inf], None], pa.large_list(pa.float64())),
        "token_ids": pa.array([[], [1]], pa.list_(pa.int64())),
        "other": pa.array([{"a": 1}, None]),
    }
    table = read_table(write_raw(tmp_path / "r.parquet", columns), ROLLOUTS)
    for field in table.schema:
        if field.name != "other":
            assert field.type == ROLLOUTS.fields.field(field.name).type
    assert table.column("answer").to_pylist() == ["42", None]
    assert table.column("token_confidence").to_pylist() == [[1.25, None, -np.inf], None]
    assert table.column("other").to_pylist() == [{"a": 1}, None]
    path = write_raw(tmp_path / "r.parquet", {**columns, "query_id": [7, 8]})
    assert read_table(path, ROLLOUTS).column("query_id").to_pylist() == ["7", "8"]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("sample_id", ["0", "1"], "column 'sample_id' is string, expected int32"),
        ("confidence", ["0.5", "1"], "column 'confidence' is string, expected double"),
        ("confidence", [[0.5], [1.0]], "column 'confidence' is list<.*>, expected double"),
        ("answer", [1.0, 2.0], "column 'answer' is double, expected string"),
        ("token_confidence", [1.0, 2.0], "column 'token_confidence' is double, expected list<"),
        ("token_confidence", [["a"], []], "column 'token_confidence' is list<.*string>, expected list<"),
        ("trained", [0, 1], "column 'trained' is int64, expected bool"),
        ("sample_id", [0, 2**31], "column 'sample_id', row 1: .*2147483648.*expected int32"),
        ("sample_id", [0.0, 1.5], "column 'sample_id', row 1: .*1.5"),
        ("sample_id", [0.0, float("nan")], "column 'sample_id', row 1: .*nan"),
        ("sample_id", [0, None], "column 'sample_id', row 1: null"),
        ("text", ["a", None], "column 'text', row 1: null"),
    ],
)
def test_other_types_and_values_are_refused(tmp_path: Path, column: str, values: Any, expected: str) -> None:
    columns = {"query_id": ["a", "b"], "sample_id": [0, 1], column: values}
    path = write_raw(tmp_path / "r.parquet", columns)
    for read in (lambda: read_table(path, ROLLOUTS), lambda: list(read_groups(RolloutFiles([path])))):
        with pytest.raises(InputError, match=expected) as error:
            read()
        assert message(error).startswith(f"{path}: ")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    text = pa.array([b"fine", b"\xff\xfe"]).view(pa.string())
    path = write_raw(tmp_path / "r.parquet", {"query_id": ["a", "b"], "sample_id": [0, 1], "text": text})
    with pytest.raises(InputError, match=r"column 'text'.*UTF8"):
        read_table(path, ROLLOUTS)


def test_names_of_a_file_do_not_break_the_line(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "r.parquet", {"query\nid": ["a"], "sample_id": [0]})
    with pytest.raises(InputError, match=r"no column 'query_id' .columns: query id, sample_id.") as error:
        RolloutFiles([path])
    message(error)
    path = write_raw(tmp_path / "r.parquet", {"query_id": ["a"], "sample_id": [0], "answer": [{"a\nb": 1}]})
    with pytest.raises(InputError, match=r"column 'answer' is struct<a b: int64>, expected string") as error:
        RolloutFiles([path])
    message(error)


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array([0]), pa.array([1])], ["query_id", "sample_id", "sample_id"]
    )
    pq.write_table(table, tmp_path / "r.parquet")
    with pytest.raises(InputError, match="column 'sample_id' appears twice"):
        RolloutFiles([tmp_path / "r.parquet"])
