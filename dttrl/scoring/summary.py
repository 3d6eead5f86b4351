"""What a set of methods elected, counted: accuracy, ties, fallbacks, and where methods disagree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dttrl.method.scored import Scored


@dataclass
class MethodSummary:
    """How one method did over all questions; ``correct`` counts among the ``with_gold`` ones."""

    method: str
    questions: int = 0
    with_gold: int = 0
    correct: int = 0
    ties: int = 0
    unanswered: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    majority_ratio_sum: float = 0.0
    label_ratio_sum: float = 0.0
    probability_sum: float = 0.0
    by_question: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Right votes and votes of a question with gold, where steps repeat questions: they are one cluster."""

    @property
    def accuracy(self) -> float:
        """Share of right votes among questions with gold; NaN without any."""
        return self.correct / self.with_gold if self.with_gold else math.nan

    @property
    def majority_ratio(self) -> float:
        """Mean of eq:majority_ratio over the questions."""
        return self.majority_ratio_sum / self.questions if self.questions else math.nan

    @property
    def label_ratio(self) -> float:
        """Mean share of the rollouts that gave the elected answer."""
        return self.label_ratio_sum / self.questions if self.questions else math.nan

    @property
    def expected_accuracy(self) -> float:
        """Mean probability of the elected answers to be right; a question without one counts 0."""
        return self.probability_sum / self.questions if self.questions else math.nan


@dataclass(frozen=True)
class Support:
    """One answer of a question: rollouts that gave it, their summed confidence, methods that elected it."""

    answer: str
    count: int
    confidence: float
    right: bool
    methods: list[str]


@dataclass(frozen=True)
class Disagreement:
    """A question that methods answer differently, its answers by falling count."""

    step: int | None
    query_id: str
    gold: str | None
    tallies: list[Support]


@dataclass
class VoteSummary:
    """All methods, how many questions each pair of them answers differently, and remarks on the data."""

    methods: list[MethodSummary]
    questions: int = 0
    rollouts: int = 0
    disagreements: Counter[tuple[str, str]] = field(default_factory=Counter)
    split_questions: int = 0
    split: list[Disagreement] = field(default_factory=list)
    """The split questions, where they were asked for."""
    notes: list[str] = field(default_factory=list)


def count_votes(summary: MethodSummary, table: pa.Table, block: Scored) -> None:
    """Add the VOTES rows of one method on a block."""
    correct = table.column("correct")
    summary.questions += table.num_rows
    summary.with_gold += table.num_rows - correct.null_count
    summary.correct += pc.sum(correct, min_count=0).as_py()
    summary.ties += pc.sum(table.column("tie"), min_count=0).as_py()
    summary.unanswered += int((table.column("answer_class").to_numpy() < 0).sum())
    summary.fallbacks.update(name for name in table.column("fallback").to_pylist() if name)
    summary.majority_ratio_sum += float(np.sum(table.column("majority_ratio").to_numpy()))
    summary.label_ratio_sum += float(np.sum(table.column("label_ratio").to_numpy()))
    summary.probability_sum += pc.sum(table.column("label_probability"), min_count=0).as_py()
    if block.step is not None:
        for query_id, right in zip(block.query_id, correct.to_pylist(), strict=True):
            if right is not None:
                before = summary.by_question.get(query_id, (0, 0))
                summary.by_question[query_id] = before[0] + int(right), before[1] + 1


def find_disagreements(
    summary: VoteSummary, block: Scored, winners: Sequence[NDArray[np.int32]], *, keep: bool
) -> None:
    """Count the questions on which each pair of methods differs; ``keep`` also keeps their tallies."""
    names = [method.method for method in summary.methods]
    for (i, first), (j, second) in combinations(enumerate(winners), 2):
        summary.disagreements[names[i], names[j]] += int((first != second).sum())
    if not winners:
        return
    winner_MR = np.stack(winners)
    split_R = (winner_MR != winner_MR[0]).any(axis=0)
    summary.split_questions += int(split_R.sum())
    if keep:
        summary.split += [
            _tallied(block, r, names, winner_MR[:, r]) for r in np.flatnonzero(split_R).tolist()
        ]


def _tallied(block: Scored, r: int, names: Sequence[str], winner_M: NDArray[np.int32]) -> Disagreement:
    class_N, confidence_N = block.class_RN[r], block.confidence_RN[r]
    tallies = []
    for c in range(int(block.n_classes_R[r])):
        inside = class_N == c
        known = confidence_N[inside & np.isfinite(confidence_N)]
        tallies.append(
            Support(
                answer=block.words[block.word_RC[r, c]],
                count=int(inside.sum()),
                confidence=float(known.sum()) if known.size else math.nan,
                right=bool(block.right_RC[r, c]),
                methods=[name for name, winner in zip(names, winner_M.tolist(), strict=True) if winner == c],
            )
        )
    tallies.sort(key=lambda tally: -tally.count)
    return Disagreement(block.step, block.query_id[r], block.gold[r], tallies)
