"""The reader of scored files against its rule, written out for one question after the other."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.errors import InputError
from dttrl.scoring.scored_files import read_scored

ANSWERS = ["1/2", "0.5", " 0.5", "3", "3.0", "03", "x", "B", "b", "", " ", None]
NUMBER = {"1/2": 7, "0.5": 7, " 0.5": 7, "3": 2, "3.0": 2, "03": 2, "x": 5, "B": 9, "b": 11}
TYPES = {"step": pa.int32(), "sample_id": pa.int32(), "answer_class": pa.int32(), "confidence": pa.float64()}

Row = dict[str, Any]


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(use_algebra=False) as opened:
        yield opened


class Read(NamedTuple):
    """What the rule says of one question."""

    step: int | None
    query_id: str
    source: str | None
    gold: str | None
    classes: list[int]
    confidences: list[float]
    spellings: list[str]
    gold_class: int | None


def literal(rows: list[Row], grader: Grader) -> Read:
    """Read one question by the rule; ``rows`` are in the order of ``sample_id``."""
    first = rows[0]
    own = grader.for_source(first["source"], first["query_id"])
    golds = {row["gold"] for row in rows}
    if len(golds) > 1:
        raise InputError(f"question {first['query_id']!r}: its rows have {len(golds)} different gold answers")
    answers = [row["answer"] for row in rows]
    stored = [row.get("answer_class") for row in rows]
    if None in stored:
        classes = own.classes(answers).tolist()
    else:
        for index, (answer, number) in enumerate(zip(answers, stored, strict=True)):
            if (number < 0) != (not answer):
                raise InputError(
                    f"question {first['query_id']!r}, rollout {index}: answer_class is {number}, but the "
                    f"answer is {answer!r}; score the file again with dttrl score"
                )
        dense = sorted({number for number in stored if number >= 0})
        classes = [dense.index(number) if number >= 0 else -1 for number in stored]
    spellings = []
    for c in range(max(classes, default=-1) + 1):
        counts = Counter(a.strip() for a, number in zip(answers, classes, strict=True) if number == c)
        spellings.append(min(counts, key=lambda text: (-counts[text], len(text), text)))
    gold = first["gold"] or None
    confidences = [row["confidence"] for row in rows]
    return Read(
        first["step"],
        first["query_id"],
        first["source"],
        gold,
        classes,
        [np.nan if value is None or not np.isfinite(value) else value for value in confidences],
        spellings,
        None if gold is None else own.match(gold, spellings),
    )


@st.composite
def questions(draw: st.DrawFn) -> list[list[Row]]:
    """Rows of questions of several sizes and steps, with every kind of answer, now and then a wrong one."""
    found = []
    stores_classes = draw(st.booleans())
    for step in draw(st.sampled_from([[None], [1, 2]])):
        for q in range(draw(st.integers(1, 5))):
            gold = draw(st.sampled_from([None, "", "0.5", "3.00", "9", "B"]))
            source = draw(st.sampled_from([None, "gpqa", "math500"]))
            given = draw(st.sampled_from([ANSWERS, ANSWERS[:3], ANSWERS[3:6]]))
            rows = []
            for sample in range(draw(st.sampled_from([1, 3, 3, 7]))):
                answer = draw(st.sampled_from(given))
                row = {"step": step, "query_id": f"q{q}", "sample_id": sample, "gold": gold}
                row |= {"source": source, "answer": answer}
                row["confidence"] = draw(st.sampled_from([None, 0.25, 1.5, float("inf"), float("nan")]))
                if stores_classes:
                    number = NUMBER.get(answer, 4 if answer else -1)
                    row["answer_class"] = draw(st.sampled_from([number] * 30 + [None, -1, 0]))
                rows.append(row)
            if draw(st.integers(0, 30)) == 0:
                rows[-1]["gold"] = "other"
            found.append(rows)
    return found


def rule(found: list[list[Row]], grader: Grader) -> list[Read] | set[str]:
    """What the rule says of all questions; where it refuses some, how it may be put."""
    read, refused = [], set()
    for rows in found:
        try:
            read.append(literal(rows, grader))
        except InputError as error:
            refused.add(str(error))
    return refused or read


@given(questions(), st.sampled_from([1, 6, 2**16]))
def test_files_are_read_by_the_rule(grader: Grader, found: list[list[Row]], rows: int) -> None:
    names = found[0][0]
    columns = {name: [row[name] for question in found for row in question] for name in names}
    table = pa.table({name: pa.array(v, TYPES.get(name, pa.string())) for name, v in columns.items()})
    expected = rule(found, grader)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scored.parquet"
        pq.write_table(table, path)
        if isinstance(expected, set):
            with pytest.raises(InputError, match="|".join(map(re.escape, expected))):
                list(read_scored(RolloutFiles([path]), grader=grader, rows=rows))
            return
        blocks = list(read_scored(RolloutFiles([path]), grader=grader, rows=rows))
    got = [
        Read(
            block.step,
            query_id,
            block.source[r],
            block.gold[r],
            block.class_RN[r].tolist(),
            block.confidence_RN[r].tolist(),
            [block.words[word] for word in block.word_RC[r].tolist() if word >= 0],
            int(block.gold_class_R[r]) if block.has_gold_R[r] else None,
        )
        for block in blocks
        for r, query_id in enumerate(block.query_id)
    ]
    assert [one._replace(confidences=[]) for one in got] == [one._replace(confidences=[]) for one in expected]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one.confidences, other.confidences)
