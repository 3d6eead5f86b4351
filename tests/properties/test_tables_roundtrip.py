"""What is written is what is read, for every table and every question format."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from dttrl.data.questions import Question, read_questions
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.rollouts import Rollout, rollouts_to_table, table_to_rollouts
from dttrl.data.schemas import EVALUATIONS, HISTORY, LABELS, ROLLOUTS, VOTES, TableSchema
from dttrl.data.tables import TableWriter, read_table, sanitize, table_from_columns, write_table
from tests.rollout_groups import read_groups

STAGES = (ROLLOUTS, VOTES, LABELS, HISTORY, EVALUATIONS)
SETTINGS = settings(deadline=None, max_examples=60)

# Every character, lone surrogates and NUL included: sanitize is part of what is tested.
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
INT32 = st.integers(-(2**31), 2**31 - 1)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a column type that come back equal: floats of their own width, text after sanitize."""
    if pa.types.is_list(kind):
        return st.lists(values(kind.value_type), max_size=4)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        return INT32
    return TEXT.map(sanitize)


@st.composite
def tables(draw: st.DrawFn, stage: TableSchema) -> pa.Table:
    names = [
        field.name
        for field in stage.fields
        if field.name in stage.required or field.name in stage.key or draw(st.booleans())
    ]
    schema = stage.select(names)

    def column(field: pa.Field) -> st.SearchStrategy[Any]:
        return st.none() | values(field.type) if field.nullable else values(field.type)

    key = st.tuples(*(column(schema.field(name)) for name in stage.key))
    keys = draw(st.lists(key, unique=True, max_size=6))
    columns: dict[str, list[Any]] = {}
    for field in schema:
        if field.name in stage.key:
            columns[field.name] = [row[stage.key.index(field.name)] for row in keys]
        else:
            columns[field.name] = draw(st.lists(column(field), min_size=len(keys), max_size=len(keys)))
    return table_from_columns(columns, schema)


def same(a: Any, b: Any) -> bool:
    """Equality in which NaN equals NaN, and nothing else is lenient."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and bool(a == b)


@SETTINGS
@given(st.sampled_from(STAGES).flatmap(lambda stage: st.tuples(st.just(stage), tables(stage))))
def test_every_table_comes_back(case: tuple[TableSchema, pa.Table]) -> None:
    stage, table = case
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        write_table(path, table, stage, metadata={})
        back = read_table(path, stage)
        assert back.schema.equals(table.schema, check_metadata=True)
        assert same(back.to_pylist(), table.to_pylist())
        assert [p.name for p in Path(folder).iterdir()] == ["t.parquet"]


@SETTINGS
@given(tables(ROLLOUTS), st.integers(1, 400), st.lists(st.integers(0, 6), max_size=3), st.integers(1, 3))
def test_groups_hold_every_row_once(
    table: pa.Table, row_group_bytes: int, cuts: list[int], step: int
) -> None:
    order = sorted(
        range(len(table)),
        key=lambda row: tuple(str(table.column(name)[row]) for name in ("step", "query_id")),
    )
    table = table.take(pa.array(order, pa.int64()))
    bounds = sorted({0, len(table), *(cut for cut in cuts if cut < len(table))})
    with tempfile.TemporaryDirectory() as folder:
        for number, (start, stop) in enumerate(pairwise(bounds)):
            path = Path(folder) / f"part-{number}.parquet"
            with TableWriter(path, table.schema, metadata={}, row_group_bytes=row_group_bytes) as writer:
                for first in range(start, stop, step):
                    writer.write(table.slice(first, min(step, stop - first)))
        if not len(table):
            return
        groups = list(read_groups(RolloutFiles([Path(folder)])))
    rows = [row for group in groups for row in group.table.to_pylist()]
    expected = sorted(
        enumerate(table.to_pylist()),
        key=lambda item: (
            [(group.step, group.query_id) for group in groups].index((item[1]["step"], item[1]["query_id"])),
            item[1]["sample_id"],
        ),
    )
    assert same(rows, [row for _, row in expected])
    for group in groups:
        assert set(group.table.column("query_id").to_pylist()) == {group.query_id}
        assert set(group.table.column("step").to_pylist()) == {group.step}


@st.composite
def rollouts(draw: st.DrawFn) -> list[Rollout]:
    def one(sample_id: int) -> Rollout:
        length = draw(st.integers(0, 4))

        def numbers(kind: Any, strategy: st.SearchStrategy[Any]) -> Any:
            size = length if draw(st.booleans()) else 0
            return np.array(draw(st.lists(strategy, min_size=size, max_size=size)), kind)

        floats = st.floats(width=32)
        return Rollout(
            query_id="q",
            sample_id=sample_id,
            text=draw(TEXT.map(sanitize)),
            finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
            token_ids=numbers(np.int32, INT32),
            token_offset=numbers(np.int32, INT32),
            token_confidence=numbers(np.float32, floats),
            token_logprob=numbers(np.float32, floats),
            token_entropy=numbers(np.float32, floats),
            token_self_certainty=numbers(np.float32, floats),
            step=draw(st.none() | INT32),
        )

    return [one(sample_id) for sample_id in range(draw(st.integers(0, 5)))]


@SETTINGS
@given(rollouts(), st.integers(0, 5))
def test_rollouts_come_back(given_rollouts: list[Rollout], cut: int) -> None:
    table = rollouts_to_table(given_rollouts, {"q": Question("q", "?")}, keep_tokens=True)
    assert table_to_rollouts(table) == given_rollouts
    # A chunked table that starts in the middle of a buffer
    assert table_to_rollouts(pa.concat_tables([table.slice(cut), table.slice(0, cut)])) == [
        *given_rollouts[cut:],
        *given_rollouts[:cut],
    ]


FILLED = TEXT.map(sanitize).filter(lambda text: bool(text.strip()))
STRIPPED = FILLED.map(str.strip)
QUESTIONS = st.lists(
    st.builds(Question, STRIPPED, FILLED, st.none() | STRIPPED, st.none() | STRIPPED),
    min_size=1,
    max_size=4,
    unique_by=lambda question: question.id,
)


def _rows(questions: list[Question]) -> list[dict[str, str | None]]:
    return [{"id": q.id, "prompt": q.prompt, "answer": q.answer, "source": q.source} for q in questions]


@SETTINGS
@given(QUESTIONS, st.booleans())
def test_questions_come_back_from_every_format(questions: list[Question], ascii_only: bool) -> None:
    rows = _rows(questions)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        json_lines = "\n\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
        (root / "q.jsonl").write_bytes(json_lines.encode())
        (root / "q.json").write_bytes(json.dumps(rows, ensure_ascii=ascii_only, indent=1).encode())
        for name, delimiter in (("q.csv", ","), ("q.tsv", "\t")):
            with (root / name).open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, quoting=csv.QUOTE_ALL)
                writer.writeheader()
                writer.writerows(rows)
        pq.write_table(pa.Table.from_pylist(rows), root / "q.parquet")
        chats = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
        pq.write_table(pa.Table.from_pylist(chats), root / "chat.parquet")
        for path in sorted(root.iterdir()):
            assert read_questions(path) == questions, path.name
