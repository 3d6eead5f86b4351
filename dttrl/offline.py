"""Votes on saved rollouts: scored files -> one row a (method, step, question), as in ``VOTES``.

Files are read as a stream, so memory does not grow with them. Questions with the same number of rollouts are
voted together. Files that hold answers but no classes (other people's) are classed on the way, and where
they have no confidence only methods that need none are possible. Axis letters: R questions voted at once, N
rollouts of each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dttrl.answers.grading import Grader
from dttrl.confidence import MEASURES, positive_weights
from dttrl.errors import InputError
from dttrl.mixture import Mixtures
from dttrl.schemas import VOTES
from dttrl.scoring import SCORED_COLUMNS, ScoredQuestion, read_scored
from dttrl.tables import RolloutFiles, TableWriter
from dttrl.voting.distrivoting import FALLBACKS
from dttrl.voting.registry import METHODS, MethodInfo, VoteMethod, VoteOutcome, parse_method

BATCH = 256
NO_CONFIDENCE = "no-confidence"
"""Fallback of a question none of whose answered rollouts has a confidence: the vote counts heads."""

_Question = tuple[int | None, ScoredQuestion]


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


@dataclass
class VoteSummary:
    """All methods, how many questions each pair of them answers differently, and remarks on the data."""

    methods: list[MethodSummary]
    questions: int = 0
    rollouts: int = 0
    disagreements: Counter[tuple[str, str]] = field(default_factory=Counter)
    split_questions: int = 0
    notes: list[str] = field(default_factory=list)


class Ballot:
    """Methods that vote on the same questions, with the running summary of what they elected."""

    def __init__(self, methods: Sequence[str], *, measure: str | None, has_confidence: bool) -> None:
        self._methods: list[tuple[str, MethodInfo, VoteMethod]] = []
        self._measure = measure
        notes = []
        for name in _expand(methods):
            method = parse_method(name)
            info, vote = method.info, method.vote
            if info.needs_confidence and not has_confidence:
                if "all" not in methods:
                    free = ", ".join(info.name for info in METHODS.values() if not info.needs_confidence)
                    raise InputError(
                        f"method {name} needs confidences and the rollouts have none: without them only "
                        f"{free} is possible (dttrl score adds confidences where token statistics were saved)"
                    )
                notes.append(f"no confidences: {name} is left out")
                continue
            self._methods.append((name, info, vote))
        self.summary = VoteSummary([MethodSummary(name) for name, _, _ in self._methods], notes=notes)

    def vote(self, questions: Sequence[_Question]) -> pa.Table:
        """Vote on questions that all have the same number of rollouts; returns their VOTES rows."""
        class_RN = np.stack([scored.class_G for _, scored in questions]).astype(np.int32)
        weight_RN = self._weights(questions)
        answered_RN = class_RN >= 0
        sighted_R = (answered_RN & np.isfinite(weight_RN)).any(axis=1)
        blind_R = np.asarray(answered_RN.any(axis=1) & ~sighted_R, dtype=np.bool_)
        tables, winners = [], []
        for (name, info, vote), summary in zip(self._methods, self.summary.methods, strict=True):
            outcome = vote(class_RN, weight_RN)
            fallbacks = _fallbacks(outcome, blind_R & np.bool_(info.needs_confidence))
            table = _rows(name, questions, outcome, fallbacks)
            _count(summary, table)
            tables.append(table)
            winners.append(outcome.vote.winner_R)
        self._compare(winners)
        self.summary.questions += len(questions)
        self.summary.rollouts += class_RN.size
        return pa.concat_tables(tables) if tables else VOTES.fields.empty_table()

    def _weights(self, questions: Sequence[_Question]) -> NDArray[np.float64]:
        confidence_RN = np.stack([scored.confidence_G for _, scored in questions])
        confidence_RN = np.where(np.isfinite(confidence_RN), confidence_RN, np.nan)
        if self._measure in MEASURES:
            return positive_weights(confidence_RN, self._measure)
        for (_, scored), row_N in zip(questions, confidence_RN, strict=True):
            lowest = np.nanmin(row_N, initial=np.inf)
            if lowest < 0 and any(info.needs_confidence for _, info, _ in self._methods):
                raise InputError(
                    f"question {scored.query_id!r}: column confidence holds {lowest:.4g}, and a negative "
                    "vote weight elects the rarest answer; store probabilities (exp of a log-probability), "
                    "or vote with --method sc"
                )
        return confidence_RN

    def _compare(self, winners: Sequence[NDArray[np.int32]]) -> None:
        names = [name for name, _, _ in self._methods]
        for (i, first), (j, second) in combinations(enumerate(winners), 2):
            self.summary.disagreements[names[i], names[j]] += int((first != second).sum())
        if winners:
            stacked = np.stack(winners)
            self.summary.split_questions += int((stacked != stacked[0]).any(axis=0).sum())


def iter_votes(
    files: RolloutFiles, ballot: Ballot, *, grader: Grader, progress: Callable[[int], None] | None = None
) -> Iterator[pa.Table]:
    """Yield VOTES rows of the files, a batch of questions at a time; ``progress`` gets the rollouts done."""
    batch: list[_Question] = []
    done = 0
    for group in files.groups([name for name in SCORED_COLUMNS if name in files.column_names]):
        scored = read_scored(group.table, query_id=group.query_id, grader=grader)
        if batch and (len(batch) >= BATCH or len(batch[0][1].answers) != len(scored.answers)):
            yield ballot.vote(batch)
            batch = []
        batch.append((group.step, scored))
        done += len(scored.answers)
        if progress is not None:
            progress(done)
    if batch:
        yield ballot.vote(batch)


def vote_files(
    paths: Sequence[Path],
    methods: Sequence[str],
    *,
    grader: Grader,
    output: Path | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> VoteSummary:
    """Vote on scored rollout files with each method (or ``all``), write VOTES to ``output`` and summarize."""
    files = RolloutFiles(paths)
    files.require("answer")
    measure = files.metadata.get("measure")
    ballot = Ballot(methods, measure=measure, has_confidence=has_confidence(files))
    if "answer_class" not in files.column_names:
        ballot.summary.notes.append("no column answer_class: answers are compared and classed on the way")
    metadata: dict[str, Any] = {**files.metadata, "methods": [m.method for m in ballot.summary.methods]}
    writer = (
        nullcontext()
        if output is None
        else TableWriter(output, VOTES.fields, metadata=metadata, overwrite=overwrite)
    )
    with writer as sink:
        for table in iter_votes(files, ballot, grader=grader, progress=progress):
            if sink is not None:
                sink.write(table)
    return ballot.summary


def has_confidence(files: RolloutFiles) -> bool:
    """Whether any rollout may have a confidence; a column of nulls is as good as none."""
    if "confidence" not in files.column_names:
        return False
    for path in files.paths:
        footer = pq.read_metadata(path)
        index = footer.schema.names.index("confidence")
        for number in range(footer.num_row_groups):
            column = footer.row_group(number).column(index)
            statistics = column.statistics
            if statistics is None or not statistics.has_null_count:
                return True
            if statistics.null_count < footer.row_group(number).num_rows:
                return True
    return False


def _expand(methods: Sequence[str]) -> list[str]:
    names = [name for method in methods for name in (METHODS if method == "all" else (method.strip(),))]
    return list(dict.fromkeys(names))


def _fallbacks(outcome: VoteOutcome, blind_R: NDArray[np.bool_]) -> list[str | None]:
    indices = [0] * blind_R.size if outcome.distrivote is None else outcome.distrivote.fallback_R.tolist()
    return [
        NO_CONFIDENCE if blind else FALLBACKS[index] or None
        for blind, index in zip(blind_R.tolist(), indices, strict=True)
    ]


def _rows(
    name: str, questions: Sequence[_Question], outcome: VoteOutcome, fallbacks: Sequence[str | None]
) -> pa.Table:
    vote, size = outcome.vote, len(questions)
    winners = vote.winner_R.tolist()
    scored = [question for _, question in questions]
    columns: dict[str, Any] = {
        "method": [name] * size,
        "step": [step for step, _ in questions],
        "query_id": [question.query_id for question in scored],
        "answer": [_spelling(question, winner) for question, winner in zip(scored, winners, strict=True)],
        "answer_class": winners,
        "gold": [question.gold for question in scored],
        "correct": [
            None if question.gold_class is None else winner >= 0 and winner == question.gold_class
            for question, winner in zip(scored, winners, strict=True)
        ],
        "n": [len(question.answers) for question in scored],
        "n_valid": vote.n_valid_R,
        "n_votes": vote.n_votes_R,
        "majority_ratio": vote.majority_ratio_R,
        "label_ratio": vote.label_ratio_R,
        "margin": vote.margin_R,
        "tie": vote.tie_R,
        "diversity": [len(question.spellings) for question in scored],
        "fallback": list(fallbacks),
        **_filter_columns(scored, outcome),
    }
    arrays = [pa.array(columns.get(column.name, [None] * size), column.type) for column in VOTES.fields]
    return pa.table(arrays, schema=VOTES.fields)


def _filter_columns(scored: Sequence[ScoredQuestion], outcome: VoteOutcome) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if outcome.distrivote is not None:
        rejected = outcome.distrivote.rejected_R.tolist()
        columns["n_pos"] = outcome.distrivote.n_pos_R
        columns["n_neg"] = outcome.distrivote.n_neg_R
        columns["rejected"] = [_spelling(q, number) for q, number in zip(scored, rejected, strict=True)]
    if isinstance(outcome.mixtures, Mixtures):
        usable = ~outcome.mixtures.is_degenerate
        for column in ("mean_neg", "std_neg", "mean_pos", "std_pos"):
            values = np.where(usable, getattr(outcome.mixtures, column), np.nan)
            columns[column] = pa.array(values, from_pandas=True)  # NaN becomes null
    return columns


def _spelling(question: ScoredQuestion, number: int) -> str | None:
    return question.spellings[number] if number >= 0 else None


def _count(summary: MethodSummary, table: pa.Table) -> None:
    correct = [value for value in table.column("correct").to_pylist() if value is not None]
    summary.questions += table.num_rows
    summary.with_gold += len(correct)
    summary.correct += sum(correct)
    summary.ties += sum(table.column("tie").to_pylist())
    summary.unanswered += sum(number < 0 for number in table.column("answer_class").to_pylist())
    summary.fallbacks.update(name for name in table.column("fallback").to_pylist() if name)
    summary.majority_ratio_sum += float(np.sum(table.column("majority_ratio").to_numpy()))
    summary.label_ratio_sum += float(np.sum(table.column("label_ratio").to_numpy()))
