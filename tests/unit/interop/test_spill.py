from __future__ import annotations

import dataclasses
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.data.rollout_files import RolloutFiles
from dttrl.errors import InputError
from dttrl.interop import spill as module
from dttrl.interop.fields import Findings, Place, ReadOptions, Record
from dttrl.interop.formats import Format
from dttrl.interop.importing import import_files
from dttrl.interop.spill import Spill
from tests.rollout_groups import read_groups

PATH = Path("theirs")
KEYS = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 3]),
        st.sampled_from(["b", "a", "ß", "B"]),
        st.integers(0, 5) | st.none(),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=40,
)


def spilled(records: list[Record], folder: Path, *, exact: bool = False) -> pa.Table:
    with Spill(folder / "x", exact_samples=exact) as spill:
        for record in records:
            spill.add(record)
        schema = spill.schema()
        table = pa.concat_tables(spill.tables(schema))
        assert (spill.num_rows, len(spill.questions)) == (len(records), len({r.query_id for r in records}))
    assert not (folder / "x").exists()
    return table


@pytest.mark.parametrize("batch", [1, 3, 1024])
@given(keys=KEYS)
def test_rows_come_sorted_and_numbered(
    keys: list[Any], batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = sorted(keys, key=lambda key: key[3])  # the files follow each other
    records = [
        Record(Place(Path(str(file)), i), query, sample=sample, step=step, text=f"{i}", confidence=float(i))
        for i, (step, query, sample, file) in enumerate(keys)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BATCH_ROWS", batch)
        table = spilled(records, tmp_path_factory.mktemp("s"))
    # Literally: by step (none first), id, file, the tool's number (none first), arrival; then counted.
    expected = sorted(
        range(len(keys)),
        key=lambda i: (
            -1 if keys[i][0] is None else keys[i][0], keys[i][1], keys[i][3],
            -1 if keys[i][2] is None else keys[i][2], i,
        ),
    )  # fmt: skip
    assert table["text"].to_pylist() == [str(i) for i in expected]
    counts: dict[Any, int] = {}
    numbers = []
    for i in expected:
        numbers.append(counts.setdefault(keys[i][:2], 0))
        counts[keys[i][:2]] += 1
    assert table["sample_id"].to_pylist() == numbers
    assert table["query_id"].to_pylist() == [keys[i][1] for i in expected]
    assert table["confidence"].to_pylist() == [float(i) for i in expected]


def test_exact_samples_are_kept_and_a_repeated_one_is_refused(tmp_path: Path) -> None:
    records = [Record(Place(PATH, i), "q", sample=s, text="x") for i, s in enumerate([9, 4, 7])]
    assert spilled(records, tmp_path, exact=True)["sample_id"].to_pylist() == [4, 7, 9]
    records.append(Record(Place(PATH, 3), "q", sample=7, text="x"))
    with pytest.raises(InputError, match="theirs, row 3: sample 7 of question 'q'"):
        spilled(records, tmp_path, exact=True)


def test_questions_that_differ_are_not_mixed(tmp_path: Path) -> None:
    def records(**changes: str) -> list[Record]:
        first = Record(Place(PATH, 0), "q", text="x", prompt="1+1?", gold="2")
        return [first, dataclasses.replace(first, place=Place(PATH, 1), **changes)]

    for changes, named in (({"gold": "3"}, "reference answer"), ({"prompt": "1+2?"}, "prompt")):
        with pytest.raises(
            InputError, match=f"theirs, row 1: the {named} of question 'q' is .*theirs, row 0"
        ):
            spilled(records(**changes), tmp_path)
    with Spill(tmp_path / "y", same_prompts=False) as spill:
        for record in records(prompt="1+2?"):
            spill.add(record)
        assert (spill.num_rows, len(spill.questions)) == (2, 1)


def test_blocks_are_put_together_over_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_ROWS", 7)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1)  # the least number of rows a block: 64
    keys = [(q, s) for q in range(20) for s in range(10)]
    random.Random(0).shuffle(keys)
    records = [
        Record(
            Place(PATH, i), f"q{q:02}", sample=s, text=f"{q}-{s}", token_confidence=np.full(s, q, np.float32),
            gold=str(q), finish_reason="length" if s else None,
        )
        for i, (q, s) in enumerate(keys)
    ]  # fmt: skip
    table = spilled(records, tmp_path)
    keys.sort()
    assert table["text"].to_pylist() == [f"{q}-{s}" for q, s in keys]
    assert table["token_confidence"].to_pylist() == [[float(q)] * s for q, s in keys]
    assert table["finish_reason"].to_pylist() == ["length" if s else "stop" for _, s in keys]
    assert [field.name for field in table.schema if not field.nullable and table[field.name].null_count] == []


def test_broken_text_is_made_whole(tmp_path: Path) -> None:
    table = spilled([Record(Place(PATH, 0), "q", text="a\ud800b\0")], tmp_path)
    assert table["text"].to_pylist() == ["a�b�"]


def test_memory_does_not_grow_with_the_texts(tmp_path: Path) -> None:
    def read(path: Path, options: ReadOptions, findings: Findings) -> Any:
        for i in range(3000):
            yield Record(Place(path, i), f"q{i % 10}", text=chr(97 + i % 26) * 20_000)

    entry = Format("made", "", "", "", (), lambda path: True, read)
    (tmp_path / "in").write_text("x")
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    peak = 0

    def progress(done: int) -> None:
        nonlocal peak
        peak = max(peak, pool.bytes_allocated() - before)

    tracemalloc.start()
    try:
        import_files(entry, [tmp_path / "in"], tmp_path / "out.parquet", progress=progress)
        python_peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 3000 * 20_000 > 55 * 2**20
    assert python_peak < 30 * 2**20  # a batch of records, and one of its copy
    assert peak < 20 * 2**20
    groups = list(read_groups(RolloutFiles([tmp_path / "out.parquet"])))
    assert [group.table.num_rows for group in groups] == [300] * 10
    assert groups[3].table["text"][1].as_py() == chr(97 + 13) * 20_000
