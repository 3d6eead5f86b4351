from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.data import rollout_files
from dttrl.data.rollout_files import COMPATIBLE_METADATA, RolloutFiles
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import TableWriter, table_from_columns
from dttrl.errors import InputError
from tests.rollout_groups import read_groups

SHARED = Path(__file__).resolve().parents[3].parent / "shared"


def table(*keys: tuple[int | None, str, int], **columns: Any) -> pa.Table:
    steps, queries, samples = zip(*keys, strict=True)
    given = {"step": steps, "query_id": queries, "sample_id": samples, **columns}
    return table_from_columns(given, ROLLOUTS.select(given))


def write(path: Path, rows: pa.Table, row_group_bytes: int = 2**20, **metadata: object) -> Path:
    with TableWriter(path, rows.schema, metadata=metadata, row_group_bytes=row_group_bytes) as writer:
        writer.write(rows)
    return path


def keys(files: RolloutFiles) -> list[tuple[int | None, str, list[int]]]:
    return [
        (group.step, group.query_id, group.table.column("sample_id").to_pylist())
        for group in read_groups(files)
    ]


def test_two_columns_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "theirs.parquet"
    columns = {
        "query_id": ["a", "a", "b"],
        "sample_id": [0, 1, 0],
        "answer": ["1", None, "2"],
        "note": [1, 2, 3],
    }
    pq.write_table(pa.table(columns), path)
    files = RolloutFiles([path])
    assert files.metadata == {}
    assert files.num_rows == 3
    assert files.column_names == ["step", "query_id", "sample_id", "answer", "note"]
    assert keys(files) == [(None, "a", [0, 1]), (None, "b", [0])]
    (first, _) = read_groups(files, ["answer"])
    assert first.table.schema.equals(ROLLOUTS.select(["step", "query_id", "sample_id", "answer"]))
    assert next(files.blocks(["note"])).table.column_names == ["step", "query_id", "sample_id", "note"]


def test_require_names_the_command(tmp_path: Path) -> None:
    files = RolloutFiles([write(tmp_path / "r.parquet", table((None, "a", 0)))])
    files.require("query_id", "step")
    for column, expected in [
        ("answer", "no column 'answer'; run `dttrl score` first"),
        ("text", "no column 'text'; run `dttrl generate` first"),
        ("reward", "no column 'reward'; run `dttrl train` first"),
        ("pace", r"no column 'pace' \(columns: step, query_id, sample_id\)"),
    ]:
        with pytest.raises(InputError, match=expected):
            files.require("query_id", column)
        with pytest.raises(InputError, match=expected):
            list(read_groups(files, [column]))


def test_missing_key_column_lists_what_there_is(tmp_path: Path) -> None:
    pq.write_table(pa.table({"qid": ["a"], "sample_id": [0]}), tmp_path / "r.parquet")
    with pytest.raises(InputError, match=r"no column 'query_id' \(columns: qid, sample_id\); rename"):
        RolloutFiles([tmp_path / "r.parquet"])


def test_groups_straddle_batches_row_groups_and_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_keys = [(step, query, sample) for step in (0, 1) for query in ("a", "b") for sample in range(25)]
    whole = table(*all_keys, confidence=np.arange(100.0))
    for rows in (1, 3, 7, 1000):
        monkeypatch.setattr(rollout_files, "_BATCH_ROWS", rows)
        folder = tmp_path / f"parts-{rows}"
        for part, start in enumerate(range(0, 100, 9)):  # part-10 sorts before part-2 as text
            write(folder / f"part-{part}.parquet", whole.slice(start, 9), row_group_bytes=100)
        groups = list(read_groups(RolloutFiles([folder])))
        assert [(group.step, group.query_id) for group in groups] == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
        assert pa.concat_tables([group.table for group in groups]).equals(whole)


def test_samples_come_in_order_whatever_the_file_has(tmp_path: Path) -> None:
    rows = table(
        (None, "b", 2), (None, "b", 0), (None, "b", 1), (None, "a", 0), text=["two", "zero", "one", "other"]
    )
    files = RolloutFiles([write(tmp_path / "r.parquet", rows)])
    first, second = read_groups(files)
    assert (first.query_id, second.query_id) == ("b", "a")
    assert first.table.column("text").to_pylist() == ["zero", "one", "two"]


def test_one_id_under_several_steps_or_none_is_several_groups(tmp_path: Path) -> None:
    rows = table((None, "a", 0), (0, "a", 0), (0, "a", 1), (1, "a", 0))
    path = write(tmp_path / "r.parquet", rows)
    assert keys(RolloutFiles([path])) == [(None, "a", [0]), (0, "a", [0, 1]), (1, "a", [0])]


def test_a_repeated_sample_is_refused_with_its_row(tmp_path: Path) -> None:
    rows = table((0, "a", 0), (0, "b", 1), (0, "b", 0), (0, "b", 2), (0, "b", 1))
    path = write(tmp_path / "r.parquet", rows)
    with pytest.raises(InputError, match=r"r.parquet: row 4 repeats query_id 'b', step 0, sample_id 1;"):
        keys(RolloutFiles([path]))
    for part, start in enumerate((0, 2)):
        write(tmp_path / "parts" / f"{part}.parquet", rows.slice(start, 2 if part == 0 else 3))
    with pytest.raises(InputError, match=r"1.parquet: row 2 repeats query_id 'b', step 0, sample_id 1;"):
        keys(RolloutFiles([tmp_path / "parts"]))


def test_a_group_that_reappears_is_refused_with_its_row(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.parquet", table((None, "a", 0), (None, "b", 0), (None, "b", 1), (None, "a", 1))
    )
    groups = read_groups(RolloutFiles([path]))
    assert [next(groups).query_id, next(groups).query_id] == ["a", "b"]
    with pytest.raises(InputError, match=r"row 3: query_id 'a' appears again after other questions; sort"):
        next(groups)


def test_rows_are_those_of_the_file_behind_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_files, "_BATCH_ROWS", 4)
    samples: list[int | None] = [*range(9), None, 10]
    pq.write_table(pa.table({"query_id": ["a"] * 11, "sample_id": samples}), tmp_path / "r.parquet")
    with pytest.raises(InputError, match="column 'sample_id', row 9: null"):
        keys(RolloutFiles([tmp_path / "r.parquet"]))
    pq.write_table(
        pa.table({"query_id": ["a"] * 11, "sample_id": [*range(10), 2**33]}), tmp_path / "r.parquet"
    )
    with pytest.raises(InputError, match=r"column 'sample_id', row 10: .*8589934592"):
        keys(RolloutFiles([tmp_path / "r.parquet"]))


@pytest.mark.parametrize("name", [name for name in COMPATIBLE_METADATA if name != "format_version"])
def test_files_of_different_settings_are_not_mixed(tmp_path: Path, name: str) -> None:
    first = write(tmp_path / "1.parquet", table((None, "a", 0)), **{name: 1})
    second = write(tmp_path / "2.parquet", table((None, "b", 0)), **{name: 2})
    third = write(tmp_path / "3.parquet", table((None, "c", 0)))
    with pytest.raises(InputError, match=rf"2.parquet: {name} is 2, but 1 in .*1.parquet; do not mix"):
        RolloutFiles([first, second])
    with pytest.raises(InputError, match=rf"3.parquet: {name} is not said, but 1 in"):
        RolloutFiles([first, third])


def test_exact_and_truncated_entropies_are_not_mixed(tmp_path: Path) -> None:
    exact = write(tmp_path / "1.parquet", table((None, "a", 0)), entropy="full")
    truncated = write(tmp_path / "2.parquet", table((None, "b", 0)), entropy="topk")
    with pytest.raises(InputError, match=r"2.parquet: entropy is topk, but full in .*; do not mix them"):
        RolloutFiles([exact, truncated])


def test_ours_and_theirs_are_not_mixed_silently(tmp_path: Path) -> None:
    ours = write(tmp_path / "1.parquet", table((None, "a", 0)))
    pq.write_table(table((None, "b", 0)).replace_schema_metadata(None), tmp_path / "2.parquet")
    with pytest.raises(InputError, match="format_version is not said"):
        RolloutFiles([ours, tmp_path / "2.parquet"])


def test_metadata_is_what_all_files_agree_on(tmp_path: Path) -> None:
    first = write(tmp_path / "1.parquet", table((None, "a", 0)), model="m", seed=1)
    second = write(tmp_path / "2.parquet", table((None, "b", 0)), model="m", seed=2, extra=1)
    files = RolloutFiles([first, second])
    assert files.metadata == {"format_version": 1, "stage": "rollouts", "model": "m"}
    assert files.num_rows == 2


def test_files_of_different_columns_are_not_mixed(tmp_path: Path) -> None:
    first = write(tmp_path / "1.parquet", table((None, "a", 0)))
    second = write(tmp_path / "2.parquet", table((None, "b", 0), answer=["1"]))
    with pytest.raises(InputError, match=r"1.parquet: no column 'answer', but .*2.parquet has it"):
        RolloutFiles([first, second])
    with pytest.raises(InputError, match=r"1.parquet: no column 'answer', but .*2.parquet has it"):
        RolloutFiles([second, first])
    for name, value in (("3", 1), ("4", "x")):
        pq.write_table(pa.table({"query_id": [name], "sample_id": [0], "note": [value]}), tmp_path / name)
    with pytest.raises(InputError, match="4: column 'note' is string, but int64 in"):
        RolloutFiles([tmp_path / "3", tmp_path / "4"])


def test_folders_and_run_folders(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write(run / "rollouts" / "step-000000.parquet", table((0, "a", 0)))
    write(run / "rollouts" / "step-000001.parquet", table((1, "a", 0)))
    (run / "rollouts" / "step-000002.parquet.tmp-17").write_bytes(b"half")
    (run / "rollouts" / ".hidden.parquet").write_bytes(b"half")
    (run / "labels.parquet").write_bytes(b"another table")
    for given in (run, run / "rollouts"):
        assert keys(RolloutFiles([given])) == [(0, "a", [0]), (1, "a", [0])]
    (tmp_path / "bare").mkdir()
    with pytest.raises(InputError, match=r"bare: no \*.parquet files"):
        RolloutFiles([tmp_path / "bare"])
    with pytest.raises(InputError, match="no rollout files were given"):
        RolloutFiles([])
    with pytest.raises(InputError, match="given twice"):
        RolloutFiles([run, run / "rollouts" / "step-000000.parquet"])
    with pytest.raises(InputError, match="no such file"):
        RolloutFiles([tmp_path / "absent.parquet"])


def test_no_rows_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "r.parquet", table((None, "a", 0)).slice(0, 0))
    with pytest.raises(InputError, match="holds no rollouts"):
        RolloutFiles([path])


def test_output_that_would_damage_the_input_is_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "in" / "1.parquet", table((None, "a", 0)))
    second = write(tmp_path / "in" / "2.parquet", table((None, "b", 0)))
    RolloutFiles([first]).check_output(first, keeps_rows=True)  # a clean replace
    with pytest.raises(InputError, match="is one of the input files"):
        RolloutFiles([first]).check_output(first)
    RolloutFiles([first]).check_output(tmp_path / "in" / "3.parquet")
    RolloutFiles([first.parent]).check_output(tmp_path / "out.parquet")
    with pytest.raises(InputError, match="is one of the input files"):
        RolloutFiles([first, second]).check_output(tmp_path / "in" / ".." / "in" / "1.parquet")
    with pytest.raises(InputError, match="a part of the input folder"):
        RolloutFiles([first.parent]).check_output(tmp_path / "in" / "3.parquet")


def test_batches_are_bounded_by_bytes(tmp_path: Path) -> None:
    lists = [np.random.default_rng(i).random(100_000).astype(np.float32) for i in range(40)]
    path = write(
        tmp_path / "r.parquet", table(*[(None, "a", i) for i in range(40)], token_logprob=lists), 2**30
    )
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups == 1
    assert 15 <= rollout_files._batch_rows(metadata, ROLLOUTS.select(["query_id", "token_logprob"])) <= 21
    assert rollout_files._batch_rows(metadata, ROLLOUTS.select(["query_id", "answer"])) == 4096
    extra = pa.schema([("note", pa.string())])
    assert rollout_files._batch_rows(metadata, extra) <= 21


@pytest.mark.parametrize("row_group_bytes", [2**22, 2**30])
def test_a_large_file_is_never_in_memory_whole(tmp_path: Path, row_group_bytes: int) -> None:
    numbers = np.random.default_rng(0).random((240, 80_000), dtype=np.float32)  # 77 MB, incompressible
    rows = table(*[(None, f"q{i // 4}", i % 4) for i in range(240)], token_logprob=list(numbers))
    path = write(tmp_path / "r.parquet", rows, row_group_bytes)
    assert path.stat().st_size > 60 * 2**20
    del rows
    before, peak = pa.total_allocated_bytes(), 0
    for group in read_groups(RolloutFiles([path])):
        peak = max(peak, pa.total_allocated_bytes() - before)
        number = int(group.query_id[1:])
        assert group.table.column("token_logprob")[3].values.to_numpy()[-1] == numbers[4 * number + 3, -1]
    assert peak < 50 * 2**20


@pytest.mark.parametrize(
    ("name", "groups", "size"),
    [
        ("brumo2025_r1-0528-qwen3-8b_deepconf_b64", 29, 64),
        ("lastletters_gpt3.5_esc_n40", 500, 40),
        ("math500x100_r1-distill-llama-8b_atts_n64", 100, 64),
    ],
)
def test_rollouts_of_other_tools(name: str, groups: int, size: int) -> None:
    path = SHARED / "data" / "rollouts" / f"{name}.parquet"
    if not path.is_file():
        pytest.skip("the shared rollouts are not here")
    files = RolloutFiles([path])
    sizes = [len(group.table) for group in read_groups(files)]
    assert sizes == [size] * groups
    assert files.num_rows == groups * size
