"""Scored files, read as a stream of :class:`dttrl.method.scored.Scored`.

Everything is done on columns: answers are numbers of a dictionary, and a class's spelling and whether it is
right are looked up. Answers are compared only where the file has no classes, and with gold where no spelling
is gold's own. Axis letters: P rows, Q questions of a block; R questions alike, N rollouts of each, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutBlock, RolloutFiles
from dttrl.errors import InputError
from dttrl.method.ballots import ABSENT, BoolArray, FloatArray, IntArray
from dttrl.method.confidence import MEASURES
from dttrl.method.scored import Scored

Classes = Literal["equivalent", "raw"]
BLOCK_ROWS = 2**16
WHOLE_FILE = 2**31
"""Rows at a time, so many that a file is one block."""

GraderOf = Callable[[int], Grader]
"""The grader of a question by its number; asked only where answers must be compared."""


def read_scored(
    files: RolloutFiles,
    *,
    grader: Grader,
    classes: Classes = "equivalent",
    confidence: str = "confidence",
    columns: Sequence[str] = (),
    rows: int = BLOCK_ROWS,
    width: int | None = None,
) -> Iterator[Scored]:
    """Yield the scores of the files, in file order, never the whole files.

    Questions come together that follow each other with one step and one number of rollouts; with ``width``
    those of one step, whose arrays have so many columns (more where a question has more). Needs the column
    ``answer``. ``classes="raw"`` takes every spelling for a class of its own, whatever classes the file has;
    gold is still compared by the grader. ``confidence`` names the column to use (absent: all NaN), and
    ``columns``, as far as they are there, come along in ``rows``. Raises :class:`InputError` for questions
    with several gold answers or with classes that contradict the answers.
    """
    wanted = dict.fromkeys(("answer", "answer_class", "gold", "source", confidence, *columns))
    # The measure says what the column `confidence` is, and nothing of another one.
    measure = files.metadata.get("measure") if confidence == "confidence" else None
    for block in files.blocks([name for name in wanted if name in files.column_names], rows=rows):
        sources, golds = sources_of(block), golds_of(block)
        word_P, words = _words(block.table.column("answer"))
        class_P = word_P.astype(np.int32)
        if classes == "equivalent":
            class_P = _classes(block, word_P, words, partial(_grader_of, grader, sources, block.query_id))
        confidence_P = np.full(len(block.table), np.nan)
        if confidence in block.table.column_names:
            confidence_P = column_floats(block.table.column(confidence), confidence)
        for first, last in _alike(block, by_size=width is None):
            start, stop = int(block.start_Q[first]), int(block.start_Q[last])
            size_R = np.diff(block.start_Q[first : last + 1])
            breadth = max(width or 0, int(size_R.max()))
            class_RN, word_RN, confidence_RN = (
                _spread(values_P[start:stop], size_R, breadth, missing)
                for values_P, missing in ((class_P, ABSENT), (word_P, -1), (confidence_P, np.nan))
            )
            query_id, source, gold = block.query_id[first:last], sources[first:last], golds[first:last]
            class_RN, word_RC = _spellings(class_RN, word_RN, words)
            yield Scored(
                class_RN,
                confidence_RN,
                block.step[first],
                measure if measure in MEASURES else None,
                query_id,
                source,
                gold,
                right_RC=_right(word_RC, words, gold, partial(_grader_of, grader, source, query_id), classes),
                word_RC=word_RC,
                words=words,
                rows=block.table.slice(start, stop - start),
            )


def column_floats(column: pa.ChunkedArray, name: str) -> FloatArray:
    """Return a column as numbers, NaN where there is none; raises for a column of anything else."""
    try:
        values: FloatArray = column.cast(pa.float64()).to_numpy().astype(np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"column {name!r} holds {column.type}, and a confidence is a number") from None
    values[~np.isfinite(values)] = np.nan
    return values


def sources_of(block: RolloutBlock) -> list[str | None]:
    """Return the data set of each question, where its rows say it."""
    if "source" not in block.table.column_names:
        return [None] * len(block.query_id)
    sources: list[str | None] = block.table.column("source").take(block.start_Q[:-1]).to_pylist()
    return sources


def golds_of(block: RolloutBlock) -> list[str | None]:
    """Return the gold answer of each question; raises :class:`InputError` where its rows disagree."""
    if "gold" not in block.table.column_names:
        return [None] * len(block.query_id)
    index_P, texts = _encoded(block.table.column("gold"))
    first_Q, size_Q = block.start_Q[:-1], np.diff(block.start_Q)
    differs = np.flatnonzero(index_P != np.repeat(index_P[first_Q], size_Q))
    if differs.size:
        q = int(np.searchsorted(block.start_Q, differs[0], side="right")) - 1
        several = len(set(index_P[block.start_Q[q] : block.start_Q[q + 1]].tolist()))
        raise InputError(
            f"question {block.query_id[q]!r}: its rows have {several} different gold answers; "
            "column gold must be the same on every row of a question"
        )
    return [texts[index] or None for index in index_P[first_Q].tolist()]


def _grader_of(grader: Grader, sources: Sequence[str | None], query_ids: Sequence[str], q: int) -> Grader:
    return grader.for_source(sources[q], query_ids[q])


def _encoded(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str | None]]:
    """Return texts as places in a list of the distinct ones, which ends with the None of what is missing."""
    encoded = pc.dictionary_encode(column).combine_chunks()
    texts = encoded.dictionary.to_pylist()
    return pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False), [*texts, None]


def _words(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """Return answers as numbers of distinct spellings, -1 where there is none (of blanks: there is one)."""
    index_P, texts = _encoded(column)
    number: dict[str, int] = {}
    word_of = [number.setdefault(text.strip(), len(number)) if text else -1 for text in texts]
    return np.array(word_of, dtype=np.int64)[index_P], list(number)


def _spread(values_P: NDArray[Any], size_R: NDArray[np.int64], width: int, missing: float) -> NDArray[Any]:
    """Return values as one row a question, (R, width), with ``missing`` past a question's rollouts."""
    if (size_R == width).all():
        return values_P.reshape(len(size_R), width)
    spread_RN = np.full((len(size_R), width), missing, dtype=values_P.dtype)
    spread_RN[np.arange(width) < size_R[:, None]] = values_P
    return spread_RN


def _alike(block: RolloutBlock, *, by_size: bool) -> Iterator[tuple[int, int]]:
    """Ranges of questions with one step and, ``by_size``, one number of rollouts."""
    sizes = np.diff(block.start_Q).tolist() if by_size else [0] * (len(block.start_Q) - 1)
    first = 0
    for q in range(1, len(sizes) + 1):
        if q == len(sizes) or sizes[q] != sizes[first] or block.step[q] != block.step[first]:
            yield first, q
            first = q


def _classes(
    block: RolloutBlock, word_P: NDArray[np.int64], words: list[str], grader_of: GraderOf
) -> IntArray:
    """Class numbers as the file has them, or by comparison, question by question; not yet dense."""
    table, stored_P = block.table, np.full(len(block.table), -1, dtype=np.int32)
    known_P = np.zeros(len(table), dtype=bool)
    if "answer_class" in table.column_names:
        column = table.column("answer_class").combine_chunks()
        known_P = pc.is_valid(column).to_numpy(zero_copy_only=False)
        stored_P = pc.fill_null(column, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    complete_Q = np.logical_and.reduceat(known_P, block.start_Q[:-1])
    clash_P = (stored_P < 0) != (word_P < 0)
    clash_P &= np.repeat(complete_Q, np.diff(block.start_Q))
    if clash_P.any():
        row = int(np.flatnonzero(clash_P)[0])
        q = int(np.searchsorted(block.start_Q, row, side="right")) - 1
        raise InputError(
            f"question {block.query_id[q]!r}, rollout {row - int(block.start_Q[q])}: answer_class is "
            f"{stored_P[row]}, but the answer is {table.column('answer')[row].as_py()!r}; "
            "score the file again with dttrl score"
        )
    result_P = stored_P.copy()
    for q in np.flatnonzero(~complete_Q).tolist():
        part = slice(int(block.start_Q[q]), int(block.start_Q[q + 1]))
        distinct, first, inverse = np.unique(word_P[part], return_index=True, return_inverse=True)
        order = np.argsort(first)  # classes are numbered in order of first appearance
        texts = [words[word] if word >= 0 else None for word in distinct[order].tolist()]
        number = np.empty(len(distinct), dtype=np.int32)
        number[order] = grader_of(q).classes(texts)
        result_P[part] = number[inverse.ravel()]
    return result_P


def _spellings(class_RN: IntArray, word_RN: NDArray[np.int64], words: list[str]) -> tuple[IntArray, IntArray]:
    """Make classes dense and find how each is written.

    That is its most frequent spelling, then the shortest, then the first in code-point order.
    """
    n_questions = len(class_RN)
    row, column = np.nonzero(class_RN >= 0)
    if not row.size:
        return class_RN.astype(np.int32), np.full((n_questions, 0), -1, dtype=np.int32)
    width, depth = int(class_RN.max()) + 1, len(words)
    number = class_RN[row, column].astype(np.int64)
    kinds, count = np.unique((row * width + number) * depth + word_RN[row, column], return_counts=True)
    cell, word = np.divmod(kinds, depth)
    opens = np.append(True, cell[1:] != cell[:-1])
    if not opens.all():
        several = ~(opens & np.append(opens[1:], True))
        order = sorted(set(word[several].tolist()), key=lambda w: (len(words[w]), words[w]))
        preference = np.zeros(depth, dtype=np.int64)
        preference[order] = np.arange(len(order))
        best = np.lexsort((preference[word], -count, cell))[opens]
    else:
        best = np.arange(len(cell))
    cell_row = cell[best] // width
    first_of_row = np.searchsorted(cell_row, np.arange(n_questions))
    dense = np.arange(len(best)) - first_of_row[cell_row]
    word_RC = np.full((n_questions, int(dense.max()) + 1), -1, dtype=np.int32)
    word_RC[cell_row, dense] = word[best]
    lookup = np.full(n_questions * width, -1, dtype=np.int32)
    lookup[cell[best]] = dense
    if np.array_equal(cell[best] % width, dense):
        return class_RN.astype(np.int32), word_RC
    dense_RN = np.minimum(class_RN, -1).astype(np.int32)
    dense_RN[row, column] = lookup[row * width + number]
    return dense_RN, word_RC


def _right(
    word_RC: IntArray,
    words: list[str],
    golds: Sequence[str | None],
    grader_of: GraderOf,
    classes: Classes,
) -> BoolArray:
    """Which classes equal gold: one at most, but for raw strings, several of which may be right."""
    index = dict(zip(words, range(len(words)), strict=True))
    gold_R = np.array([-2 if gold is None else index.get(gold.strip(), -2) for gold in golds], dtype=np.int64)
    right_RC: BoolArray = word_RC == gold_R[:, None]
    found_R = right_RC.any(axis=1) if classes == "equivalent" else np.zeros(len(golds), dtype=bool)
    for r in np.flatnonzero(~found_R).tolist():
        gold = golds[r]
        if gold is None:
            continue
        spellings = [words[word] for word in word_RC[r].tolist() if word >= 0]
        if classes == "equivalent":
            match = grader_of(r).match(gold, spellings)
            if match >= 0:
                right_RC[r, match] = True
        else:
            right_RC[r, : len(spellings)] = [grader_of(r).match(gold, [text]) == 0 for text in spellings]
    return right_RC
