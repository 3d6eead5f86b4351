"""The scores of many questions as arrays: what offline votes and budget tables work on.

Everything is done on columns: answers are numbers of a dictionary, and a class's spelling and whether it is
right are looked up. Answers are compared only where the file has no classes, and with gold where no spelling
is gold's own. Axis letters: R questions, N rollouts of each, C answer classes of a question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dttrl.answers.grading import Grader
from dttrl.errors import InputError
from dttrl.rollout_files import RolloutBlock, RolloutFiles

Classes = Literal["equivalent", "raw"]
BLOCK_ROWS = 2**16

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float64]
GraderOf = Callable[[int], Grader]
"""The grader of a question by its number; asked only where answers must be compared."""


@dataclass(frozen=True)
class ScoredBlock:
    """The scores of R questions with the same number N of rollouts, all of one step where there are steps."""

    step: int | None
    query_id: list[str]
    gold: list[str | None]
    class_RN: IntArray
    """Answer class, dense from 0 within the question, -1 for none."""
    confidence_RN: NDArray[np.float64]
    """NaN where there is none."""
    word_RC: IntArray
    """Index into ``words`` of the spelling of each class, -1 past a question's classes."""
    right_RC: NDArray[np.bool_]
    """Whether a class equals gold."""
    words: list[str]

    @property
    def n_classes_R(self) -> IntArray:
        """Answer classes of each question."""
        return np.asarray((self.word_RC >= 0).sum(axis=1), dtype=np.int32)

    @property
    def gold_class_R(self) -> IntArray:
        """Class of the gold answer, -1 where no rollout gave it (or there is no gold)."""
        if not self.right_RC.shape[1]:
            return np.full(len(self.query_id), -1, dtype=np.int32)
        return np.where(self.right_RC.any(axis=1), self.right_RC.argmax(axis=1), -1).astype(np.int32)

    def take(self, rows: Sequence[int]) -> ScoredBlock:
        """Return the block with its questions in another order."""
        index = np.asarray(rows, dtype=np.intp)
        return replace(
            self,
            query_id=[self.query_id[row] for row in rows],
            gold=[self.gold[row] for row in rows],
            class_RN=self.class_RN[index],
            confidence_RN=self.confidence_RN[index],
            word_RC=self.word_RC[index],
            right_RC=self.right_RC[index],
        )

    def spelling(self, class_R: NDArray[np.integer[Any]]) -> list[str | None]:
        """How one class of each question is written; None for -1."""
        if not self.word_RC.shape[1]:
            return [None] * len(self.query_id)
        word_R = self.word_RC[np.arange(len(class_R)), np.maximum(class_R, 0)]
        return [
            self.words[word] if number >= 0 else None
            for word, number in zip(word_R.tolist(), class_R.tolist(), strict=True)
        ]

    def correct(self, class_R: NDArray[np.integer[Any]]) -> list[bool | None]:
        """Whether one class of each question is right; None without gold."""
        rows = np.arange(len(class_R))
        right_R = np.zeros(len(class_R), dtype=bool)
        if self.right_RC.shape[1]:
            right_R = self.right_RC[rows, np.maximum(class_R, 0)] & (class_R >= 0)
        return [
            None if gold is None else bool(right)
            for gold, right in zip(self.gold, right_R.tolist(), strict=True)
        ]


def read_blocks(
    files: RolloutFiles,
    *,
    grader: Grader,
    classes: Classes = "equivalent",
    confidence: str = "confidence",
    rows: int = BLOCK_ROWS,
) -> Iterator[ScoredBlock]:
    """Yield the scores of the files, in file order, never the whole files.

    ``classes="raw"`` takes every spelling for a class of its own, whatever classes the file has; gold is
    still compared by the grader. ``confidence`` names the column to use. Raises :class:`InputError` for
    questions with several gold answers or with classes that contradict the answers.
    """
    wanted = ("answer", "answer_class", "gold", "source", confidence)
    columns = [name for name in wanted if name in files.column_names]
    for block in files.blocks(columns, rows=rows):
        answers = _Answers.of(block.table)
        grader_of = _grader_of(block, grader)
        class_P = _classes(block, answers, grader_of, classes)
        golds = _golds(block)
        value_P = np.full(len(block.table), np.nan)
        if confidence in block.table.column_names:
            value_P = column_floats(block.table.column(confidence), confidence)
        for first, last in _alike(block):
            part = slice(int(block.start_Q[first]), int(block.start_Q[last]))
            yield _scored(
                block,
                slice(first, last),
                answers,
                class_P[part],
                value_P[part],
                golds[first:last],
                grader_of,
                classes,
            )


@dataclass(frozen=True)
class _Answers:
    """Answers by number; ``word_P`` is -1 where there is none."""

    word_P: NDArray[np.int64]
    words: list[str]
    given_P: NDArray[np.bool_]
    """Whether there is an answer, be it of blanks."""

    @staticmethod
    def of(table: pa.Table) -> _Answers:
        column = table.column("answer")
        encoded = pc.dictionary_encode(column.combine_chunks() if column.num_chunks else column)
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        texts = encoded.dictionary.to_pylist()
        words = list(dict.fromkeys(map(str.strip, texts)))
        # The last entry stands for a missing answer.
        given_of = np.array([*map(bool, texts), False])
        index_P = pc.fill_null(encoded.indices, len(texts)).to_numpy(zero_copy_only=False)
        if words == texts:
            word_of = np.append(np.arange(len(texts)), -1)
        else:
            number = {word: place for place, word in enumerate(words)}
            word_of = np.array([*(number[text.strip()] for text in texts), -1], dtype=np.int64)
        return _Answers(word_of[index_P], words, given_of[index_P])


def column_floats(column: pa.ChunkedArray, name: str) -> NDArray[np.float64]:
    """Return a column as numbers, NaN where there is none; raises for a column of anything else."""
    try:
        values: NDArray[np.float64] = column.cast(pa.float64()).to_numpy().astype(np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"column {name!r} holds {column.type}, and a confidence is a number") from None
    values[~np.isfinite(values)] = np.nan
    return values


def _alike(block: RolloutBlock) -> Iterator[tuple[int, int]]:
    """Ranges of questions with one step and one number of rollouts."""
    sizes = np.diff(block.start_Q).tolist()
    first = 0
    for q in range(1, len(sizes) + 1):
        if q == len(sizes) or sizes[q] != sizes[first] or block.step[q] != block.step[first]:
            yield first, q
            first = q


def _golds(block: RolloutBlock) -> list[str | None]:
    if "gold" not in block.table.column_names:
        return [None] * len(block.query_id)
    column = block.table.column("gold").combine_chunks()
    encoded = pc.dictionary_encode(column)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    index_P = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    first_Q, size_Q = block.start_Q[:-1], np.diff(block.start_Q)
    differs = np.flatnonzero(index_P != np.repeat(index_P[first_Q], size_Q))
    if differs.size:
        q = int(np.searchsorted(block.start_Q, differs[0], side="right")) - 1
        several = len(set(index_P[block.start_Q[q] : block.start_Q[q + 1]].tolist()))
        raise InputError(
            f"question {block.query_id[q]!r}: its rows have {several} different gold answers; "
            "column gold must be the same on every row of a question"
        )
    texts = [*encoded.dictionary.to_pylist(), None]
    return [texts[index] or None for index in index_P[first_Q].tolist()]


def _grader_of(block: RolloutBlock, grader: Grader) -> GraderOf:
    """Return what gives a question's grader: that of its source, where the kind of answer is chosen by it."""
    sources = block.table.column("source") if "source" in block.table.column_names else None

    def of(q: int) -> Grader:
        source = None if sources is None else sources[int(block.start_Q[q])].as_py()
        return grader.for_source(source, block.query_id[q])

    return of


def _classes(block: RolloutBlock, answers: _Answers, grader_of: GraderOf, classes: Classes) -> IntArray:
    """Class numbers as the file has them, or by comparison, question by question; not yet dense."""
    word_P = np.where(answers.given_P, answers.word_P, -1)
    if classes == "raw":
        return word_P.astype(np.int32)
    table, stored_P = block.table, np.full(len(block.table), -1, dtype=np.int32)
    known_P = np.zeros(len(table), dtype=bool)
    if "answer_class" in table.column_names:
        column = table.column("answer_class").combine_chunks()
        known_P = pc.is_valid(column).to_numpy(zero_copy_only=False)
        stored_P = pc.fill_null(column, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    complete_Q = np.logical_and.reduceat(known_P, block.start_Q[:-1])
    clash_P = (stored_P < 0) != ~answers.given_P
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
        texts = [answers.words[word] if word >= 0 else None for word in distinct[order].tolist()]
        number = np.empty(len(distinct), dtype=np.int32)
        number[order] = grader_of(q).classes(texts)
        result_P[part] = number[inverse.ravel()]
    return result_P


def _scored(
    block: RolloutBlock,
    questions: slice,
    answers: _Answers,
    class_P: IntArray,
    confidence_P: NDArray[np.float64],
    golds: list[str | None],
    grader_of: GraderOf,
    classes: Classes,
) -> ScoredBlock:
    ids = block.query_id[questions]
    shape = (len(ids), class_P.size // len(ids))
    first = int(block.start_Q[questions.start])
    word_RN = answers.word_P[first : first + class_P.size].reshape(shape)
    class_RN, word_RC = _spellings(class_P.reshape(shape), word_RN, answers.words)
    return ScoredBlock(
        step=block.step[questions.start],
        query_id=ids,
        gold=golds,
        class_RN=class_RN,
        confidence_RN=confidence_P.reshape(shape),
        word_RC=word_RC,
        right_RC=_right(word_RC, golds, answers.words, lambda r: grader_of(questions.start + r), classes),
        words=answers.words,
    )


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
        order = sorted(set(word[_shared(opens)].tolist()), key=lambda w: (len(words[w]), words[w]))
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
    dense_RN = np.full(class_RN.shape, -1, dtype=np.int32)
    dense_RN[row, column] = lookup[row * width + number]
    return dense_RN, word_RC


def _shared(opens: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which entries of a run-length list stand in runs of several."""
    closes = np.append(opens[1:], True)
    shared: NDArray[np.bool_] = ~(opens & closes)
    return shared


def _right(
    word_RC: IntArray,
    golds: Sequence[str | None],
    words: list[str],
    grader_of: GraderOf,
    classes: Classes,
) -> NDArray[np.bool_]:
    """Which classes equal gold: one at most, but for raw strings, several of which may be right."""
    index = dict(zip(words, range(len(words)), strict=True))
    gold_R = np.array([-2 if gold is None else index.get(gold.strip(), -2) for gold in golds], dtype=np.int64)
    right_RC: NDArray[np.bool_] = word_RC == gold_R[:, None]
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
