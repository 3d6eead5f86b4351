from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import EVALUATIONS, FORMAT_VERSION, HISTORY, LABELS, ROLLOUTS, VOTES
from dttrl.data.tables import (
    TableWriter,
    read_metadata,
    read_table,
    sanitize,
    table_from_columns,
    write_table,
)
from dttrl.errors import InputError, OutputExistsError, WorkError
from tests.rollout_groups import read_groups
from tests.small_tables import history, write_raw

ROOT = Path(__file__).resolve().parents[3]
STAGES = (ROLLOUTS, VOTES, LABELS, HISTORY, EVALUATIONS)
SHARED = ROOT.parent / "shared"


# --- schemas


def test_every_column_says_what_it_means_and_which_command_makes_it() -> None:
    for stage in STAGES:
        assert stage.fields.metadata == {b"stage": stage.name.encode()}
        for field in stage.fields:
            assert field.metadata[b"meaning"]
            assert stage.made_by(field.name).startswith("dttrl ")
        assert stage.required <= set(stage.fields.names)
        assert set(stage.key) <= set(stage.fields.names)
        assert stage.required <= set(stage.fields.names)
    assert ROLLOUTS.required == {"query_id", "sample_id"}
    assert ROLLOUTS.fields.field("token_confidence").metadata[b"equation"] == b"eq:traj_conf"
    assert ROLLOUTS.fields.field("token_confidence").metadata[b"unit"] == b"nats"


def test_the_equations_named_are_in_the_paper() -> None:
    paper = SHARED / "paper" / "distri-ttrl.tex"
    if not paper.is_file():
        pytest.skip("the paper's source is not here")
    text = paper.read_text(encoding="utf-8")
    for stage in STAGES:
        for field in stage.fields:
            label = field.metadata.get(b"equation", b"").decode()
            assert not label or f"\\label{{{label}}}" in text, (field.name, label)


def test_select_keeps_the_schema_order_and_refuses_unknown_names() -> None:
    assert ROLLOUTS.select(["text", "query_id"]).names == ["query_id", "text"]
    with pytest.raises(InputError, match="no column 'speed'"):
        ROLLOUTS.select(["speed"])


def test_types_that_others_code_against() -> None:
    assert ROLLOUTS.fields.field("text").type == pa.large_string()
    assert ROLLOUTS.fields.field("token_self_certainty").type == pa.list_(pa.float32())
    assert VOTES.fields.field("step").nullable
    assert not LABELS.fields.field("step").nullable
    assert EVALUATIONS.key == ("step", "split", "query_id")


# --- sanitize, table_from_columns


def test_sanitize_keeps_the_length_and_touches_nothing_else() -> None:
    assert sanitize("a\ud800\x00b") == "a\ufffd\ufffdb"
    assert sanitize("plain") == "plain"
    assert sanitize("é\U0001f600\n\t") == "é\U0001f600\n\t"
    pa.array([sanitize("\udfff")])  # what pyarrow refuses otherwise


def test_table_from_columns_keeps_nan_none_and_inf_apart() -> None:
    schema = ROLLOUTS.select(["query_id", "sample_id", "answer", "confidence"])
    columns: dict[str, Any] = {
        "query_id": ["q", "q", "q"],
        "sample_id": np.arange(3),
        "answer": ["\ud800", None, ""],
        "confidence": [float("nan"), None, float("-inf")],
    }
    table = table_from_columns(columns, schema)
    assert table.column("answer").to_pylist() == ["\ufffd", None, ""]
    first, second, third = table.column("confidence").to_pylist()
    assert np.isnan(first)
    assert second is None
    assert third == float("-inf")
    with pytest.raises(InputError, match="'answer' is missing or unknown"):
        table_from_columns({key: columns[key] for key in ("query_id", "sample_id", "confidence")}, schema)
    with pytest.raises(InputError, match="'sample_id'"):
        table_from_columns({**columns, "sample_id": [0, 1, 2**40]}, schema)
    with pytest.raises(InputError, match="'sample_id'"):
        table_from_columns({**columns, "sample_id": [0, 1, "x"]}, schema)
    with pytest.raises(InputError, match="'answer'"):
        table_from_columns({**columns, "answer": ["1", 2, None]}, schema)


# --- writing


def test_metadata_holds_version_stage_and_what_was_given(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    given = {"temperature": np.float32(0.5), "model": Path("a/b"), "stage": "rollouts", "format_version": 0}
    write_table(path, history(), HISTORY, metadata=given)
    assert read_metadata(path) == {
        "format_version": FORMAT_VERSION,
        "stage": "history",
        "temperature": 0.5,
        "model": "a/b",
    }
    assert pq.read_schema(path).field("midpoint").metadata[b"equation"] == b"eq:shift_correction"
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    write_table(path, history(4), HISTORY, metadata={})
    before = path.read_bytes()
    with pytest.raises(OutputExistsError, match="--overwrite"):
        TableWriter(path, HISTORY.fields, metadata={})
    assert path.read_bytes() == before
    with path.open("rb") as reader:  # who has the old file open keeps it: the new one takes its name
        write_table(path, history(2), HISTORY, metadata={}, overwrite=True)
        assert reader.read() == before
    assert len(read_table(path, HISTORY)) == 2


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    cases = {tmp_path / "folder": "folder", Path("."): "folder", tmp_path / "pipe": "pipe"}
    for path, kind in {**cases, Path("/dev/null"): "device"}.items():
        for overwrite in (False, True):
            with pytest.raises(InputError, match=rf"is not a regular file \(it is a {kind}") as caught:
                TableWriter(path, HISTORY.fields, metadata={}, overwrite=overwrite)
            assert "overwrite" not in str(caught.value)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_table(tmp_path / "file", history(), HISTORY, metadata={})
    write_table(tmp_path / "link", history(2), HISTORY, metadata={}, overwrite=True)
    assert len(read_table(tmp_path / "link", HISTORY)) == 2


def test_a_folder_that_appears_meanwhile_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    writer = TableWriter(path, HISTORY.fields, metadata={}, overwrite=True)
    path.mkdir()
    with pytest.raises(InputError, match="is not a regular file"), writer:
        writer.write(history())
    assert os.listdir(tmp_path) == ["h.parquet"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    writer = TableWriter(path, HISTORY.fields, metadata={})
    path.write_text("mine")
    with pytest.raises(OutputExistsError), writer:
        writer.write(history())
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["h.parquet"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_no_temporary(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "new" / "h.parquet"
    write_table(path, history(), HISTORY, metadata={})
    before = path.read_bytes()
    writer = TableWriter(path, HISTORY.fields, metadata={}, overwrite=True, row_group_bytes=1)

    def fail() -> None:
        with writer:
            writer.write(history(3))
            assert len(os.listdir(path.parent)) == 2
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["h.parquet"]


def test_a_killed_process_leaves_no_half_table_and_the_next_writer_tidies_up(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    code = (
        "import os, signal, sys, pathlib; sys.path[:0] = sys.argv[2:]\n"
        "from dttrl.data.schemas import HISTORY\n"
        "from dttrl.data.tables import TableWriter, table_from_columns\n"
        "table = table_from_columns(dict(step=[0], query_id=['q'], sample_id=[0], confidence=[1.0],"
        " midpoint=[1.0]), HISTORY.fields)\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "with TableWriter(path, HISTORY.fields, metadata={}, row_group_bytes=1) as writer:\n"
        "    writer.write(table); writer.write(table); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(ROOT)], check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = os.listdir(tmp_path)
    assert left.startswith("h.parquet.tmp-")
    kept = {
        f"h.parquet.tmp-{os.getppid()}",
        "h.parquet.tmp-x",
        "h.parquet.tmp-" + "9" * 30,
        left.replace("h.", "other."),
    }
    for name in kept:
        (tmp_path / name).touch()
    write_table(path, history(), HISTORY, metadata={})
    assert set(os.listdir(tmp_path)) == {"h.parquet", *kept}


def test_row_groups_are_cut_by_bytes_and_keep_the_rows(tmp_path: Path) -> None:
    schema = ROLLOUTS.select(["step", "query_id", "sample_id", "text", "token_confidence"])
    lengths = [3, 5000, 10, 10, 900, 20000, 1, 1, 1, 7] * 5
    table = table_from_columns(
        {
            "step": [None] * len(lengths),
            "query_id": ["q"] * len(lengths),
            "sample_id": range(len(lengths)),
            "text": ["x" * n for n in lengths],
            "token_confidence": [np.full(n, 0.5, np.float32) for n in lengths],
        },
        schema,
    )
    path = tmp_path / "r.parquet"
    with TableWriter(path, schema, metadata={}, row_group_bytes=2**15) as writer:
        for start in range(0, len(table), 7):
            writer.write(table.slice(start, 7))
        assert writer.num_rows == len(table)
    parquet = pq.ParquetFile(path)
    assert 5 < parquet.num_row_groups < len(table)
    for index in range(parquet.num_row_groups):
        group = parquet.read_row_group(index)
        assert len(group) == 1 or group.nbytes <= 2**15 * 1.1
    (only,) = read_groups(RolloutFiles([path]))
    assert only.table.equals(table)


def test_writer_refuses_wrong_columns_and_null_keys(tmp_path: Path) -> None:
    path = tmp_path / "h.parquet"
    table = history()
    for bad, text in [
        (table.drop_columns(["midpoint"]), "'midpoint' is missing"),
        (table.append_column("extra", table.column("step")), "'extra' is not in the schema"),
        (table.set_column(1, "query_id", pa.array(["a", None, "b", "c"])), "'query_id', row 1: null"),
        (table.set_column(2, "sample_id", pa.array([0, 1, 2**35, 3])), "'sample_id', row 2: .*int32"),
    ]:
        with pytest.raises(InputError, match=text), TableWriter(path, HISTORY.fields, metadata={}) as writer:
            writer.write(bad)
        assert not os.listdir(tmp_path)
    with pytest.raises(InputError, match=r"row 1 repeats the key of row 0 .*sample_id 0"):
        write_table(path, table.take([0, 0]), HISTORY, metadata={})
    with pytest.raises(InputError, match="no column 'extra'"):
        write_table(path, table.append_column("extra", table.column("step")), HISTORY, metadata={})
    with pytest.raises(InputError, match="'midpoint' is missing"):
        write_table(path, table.drop_columns(["midpoint"]), HISTORY, metadata={})
    with pytest.raises(TypeError, match="metadata cannot hold set"):
        write_table(path, table, HISTORY, metadata={"stop": {"a"}})
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="cannot be written"):
            write_table(tmp_path / "h.parquet", history(), HISTORY, metadata={})
    finally:
        tmp_path.chmod(0o700)


def test_a_parent_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_table(tmp_path / "file" / "h.parquet", history(), HISTORY, metadata={})


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for target in ("pyarrow.parquet.ParquetWriter.write_table", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(target, full)
            with pytest.raises(WorkError, match=r"h.parquet: writing failed .*No space left"):
                write_table(tmp_path / "h.parquet", history(), HISTORY, metadata={})
        assert not os.listdir(tmp_path)


def test_the_input_may_be_replaced_while_it_is_read(tmp_path: Path) -> None:
    path = write_raw(
        tmp_path / "r.parquet", {"query_id": ["a", "b"], "sample_id": [0, 0], "answer": ["1", "2"]}
    )
    files = RolloutFiles([path])
    with TableWriter(path, files.schema, metadata={}, overwrite=True, row_group_bytes=1) as writer:
        for group in read_groups(files):
            writer.write(group.table)
    assert [group.query_id for group in read_groups(RolloutFiles([path]))] == ["a", "b"]
