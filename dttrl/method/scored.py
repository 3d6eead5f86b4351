"""Scored rollouts as arrays: what files hold, what is voted on, and what the training signal is made of.

Axis letters: R questions (B of a training step), N rollouts of each (G), C answer classes of a question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from dttrl.errors import InputError
from dttrl.method.ballots import ABSENT, BoolArray, FloatArray, IntArray
from dttrl.method.confidence import Measure

NO_ROWS = pa.table({})


@dataclass(frozen=True, slots=True)
class Scored:
    """R questions with up to N rollouts each, in sample order, all of one step where there are steps.

    Votes need the two arrays alone, the training signal the step and the measure besides. What stands after
    them is empty where it is not known.
    """

    class_RN: IntArray
    """Answer class, dense from 0 within the question, int32, -1 for no answer; ABSENT: not drawn."""
    confidence_RN: FloatArray
    """Trajectory confidence, float64, higher is surer, NaN for none."""
    step: int | None = None
    measure: Measure | None = "topk"
    """What the confidence is; None where nobody says."""
    query_id: Sequence[str] = ()
    source: Sequence[str | None] = ()
    """Data set of each question."""
    gold: Sequence[str | None] = ()
    """Gold answer of each question; it is measured with, and only the ground-truth method labels with it."""
    right_RC: BoolArray = field(default_factory=lambda: np.empty((0, 0), dtype=np.bool_))
    """Whether a class equals gold; at most one does, but where every spelling is a class of its own."""
    word_RC: IntArray = field(default_factory=lambda: np.empty((0, 0), dtype=np.int32))
    """Index into ``words`` of the spelling of each class, -1 past a question's classes."""
    words: Sequence[str] = ()
    candidates: Mapping[str, FloatArray] = field(default_factory=dict)
    """Confidences (R, N) among which the one is yet to be chosen (:mod:`dttrl.method.measure_choice`)."""
    rows: pa.Table = field(default_factory=lambda: NO_ROWS)
    """The rows of a rollout table of what was drawn, with the answers as they were found."""

    def __post_init__(self) -> None:
        shape = self.class_RN.shape
        if len(shape) != 2 or shape != self.confidence_RN.shape:
            raise InputError(f"classes {shape} and confidences {self.confidence_RN.shape} must be (R, N)")
        if 0 in shape:
            raise InputError(f"at least one question and one rollout are needed, got {shape}")

    @property
    def drawn_RN(self) -> BoolArray:
        """Which rollouts were drawn: all, but where questions stopped early."""
        return np.asarray(self.class_RN != ABSENT)

    @property
    def n_drawn_R(self) -> IntArray:
        """Rollouts of each question."""
        return np.asarray(self.drawn_RN.sum(axis=1), dtype=np.int32)

    @property
    def n_classes_R(self) -> IntArray:
        """Answer classes of each question."""
        return np.asarray(self.class_RN.max(axis=1) + 1, dtype=np.int32)

    @property
    def has_gold_R(self) -> BoolArray:
        """Which questions have a gold answer."""
        return np.array([text is not None for text in self.gold] or [False] * len(self.class_RN))

    @property
    def gold_class_R(self) -> IntArray:
        """Class of the gold answer, -1 where no rollout gave it (or there is no gold)."""
        if not self.right_RC.size:
            return np.full(len(self.class_RN), -1, dtype=np.int32)
        return np.where(self.right_RC.any(axis=1), self.right_RC.argmax(axis=1), -1).astype(np.int32)

    @property
    def correct_RN(self) -> BoolArray:
        """Which rollouts give the gold answer."""
        return self.right(self.class_RN)

    def right(self, class_RX: IntArray) -> BoolArray:
        """Whether classes of each question, any number of them, equal gold; False without gold."""
        if not self.right_RC.size:
            return np.zeros(class_RX.shape, dtype=np.bool_)
        return np.take_along_axis(self.right_RC, np.maximum(class_RX, 0), axis=1) & (class_RX >= 0)

    def correct(self, class_R: IntArray) -> list[bool | None]:
        """Whether one class of each question is right; None without gold."""
        right_R = self.right(class_R[:, None])[:, 0].tolist()
        return [right if known else None for right, known in zip(right_R, self.has_gold_R, strict=True)]

    def spelling(self, class_R: IntArray) -> list[str | None]:
        """How one class of each question is written; None for -1."""
        if not self.word_RC.size:
            return [None] * len(class_R)
        word_R = self.word_RC[np.arange(len(class_R)), np.maximum(class_R, 0)]
        return [
            self.words[word] if number >= 0 else None
            for word, number in zip(word_R.tolist(), class_R.tolist(), strict=True)
        ]

    def take(self, questions: Sequence[int]) -> Scored:
        """Return some of the questions, in the order given."""
        index = np.asarray(questions, dtype=np.intp)
        arrays = ("class_RN", "confidence_RN", "right_RC", "word_RC")
        lists = ("query_id", "source", "gold")
        taken = {name: getattr(self, name)[index] for name in arrays if len(getattr(self, name))}
        taken |= {name: [getattr(self, name)[r] for r in questions] for name in lists if getattr(self, name)}
        taken["candidates"] = {name: value[index] for name, value in self.candidates.items()}
        rows = NO_ROWS
        if self.rows.num_columns:
            drawn_RN = self.drawn_RN
            row_RN = (drawn_RN.cumsum() - 1).reshape(drawn_RN.shape)
            rows = self.rows.take(row_RN[index][drawn_RN[index]])
        return replace(self, **taken, rows=rows)
