"""Choice of a checkpoint without gold answers: the one whose votes still give the answers of the first votes.

The first vote of a question comes from a model that training has hardly touched. A run that learns gives its
answer ever more often; one that collapses gives another, however consistent it is. So what a checkpoint has
gained is read from the latest vote of every question up to it, beside the question's first (not in the
paper; ``docs/latent.md`` has the regret). Nothing is sampled for it, and there is no parameter.

Axis letter: R votes, each of one question at one step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dttrl.answers.equivalence import Verdict
from dttrl.answers.grading import Grader

COLUMNS = ("step", "query_id", "majority_answer", "majority_ratio")
"""The columns of LABELS that are read."""
Equal = Callable[[str, str], bool]
"""Whether two answers are the same."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the votes up to a checkpoint say of it; all but ``step`` and ``again`` are means over questions.

    Only ``gain`` is read by the choice; the others show what it rests on.
    """

    step: int
    again: int
    """Questions that were voted on a second time."""
    kept: float
    """Share of those whose majority answer is still that of their first vote; NaN without any."""
    gain: float
    """Share of votes for the first vote's answer, latest vote minus first, over all questions voted on.

    The latest share counts only while that answer is the majority answer, else as 0. A question that was not
    voted on again has gained nothing: so the few that a second pass begins with do not decide. The first
    share is that of a winner, which flatters it where votes are few (docs/latent.md).
    """
    majority_ratio: float
    """Of the latest vote of every question; NaN before the first vote."""
    shared: float
    """Share of questions with the majority answer of another question; NaN before the first vote."""


@dataclass(frozen=True, slots=True)
class _Vote:
    step: int
    answer: str | None
    ratio: float


def standings(
    step_R: Sequence[int],
    query_R: Sequence[str],
    answer_R: Sequence[str | None],
    ratio_R: Sequence[float],
    checkpoints: Iterable[int],
    *,
    equal: Equal = str.__eq__,
) -> list[Standing]:
    """Return the standing of every checkpoint, ascending, from the votes in any order.

    ``answer_R`` are the majority answers (None: no rollout had one), ``ratio_R`` their shares of the
    rollouts. A question without an answer in its first vote has nothing to keep: its gain is 0.
    """
    rows = zip(step_R, query_R, answer_R, ratio_R, strict=True)
    ordered = sorted(rows, key=lambda row: (row[0], row[1]))
    first: dict[str, _Vote] = {}
    latest: dict[str, _Vote] = {}
    found, position = [], 0
    for checkpoint in sorted(set(checkpoints)):
        while position < len(ordered) and ordered[position][0] <= checkpoint:
            step, query, answer, ratio = ordered[position]
            latest[query] = _Vote(step, answer, ratio)
            first.setdefault(query, latest[query])
            position += 1
        found.append(_standing(checkpoint, first, latest, equal))
    return found


def standings_of(labels: pa.Table, checkpoints: Iterable[int], *, kind: str) -> list[Standing]:
    """Return :func:`standings` of rows of LABELS (:data:`COLUMNS`); ``kind`` is that of the answers.

    Spellings are compared as strings and exact numbers, without algebra: the same everywhere, and at once.
    """
    grader = Grader(kind=kind, use_algebra=False)
    step_R, query_R, answer_R, ratio_R = (labels.column(name).to_pylist() for name in COLUMNS)
    return standings(
        step_R, query_R, answer_R, ratio_R, checkpoints, equal=lambda a, b: grader.equal(a, b) is Verdict.YES
    )


def best_standing(found: Iterable[Standing]) -> Standing:
    """Return the checkpoint of the largest gain, the latest of several."""
    return max(found, key=lambda standing: (standing.gain, standing.step))


def _standing(
    checkpoint: int, first: Mapping[str, _Vote], latest: Mapping[str, _Vote], equal: Equal
) -> Standing:
    gains, kept = [], 0
    for query, now in latest.items():
        then = first[query]
        if now.step == then.step:
            continue
        same = now.answer is not None and then.answer is not None and equal(then.answer, now.answer)
        kept += same
        gains.append((now.ratio if same else 0.0) - (0.0 if then.answer is None else then.ratio))
    again, total = len(gains), len(latest)
    times = Counter(vote.answer for vote in latest.values() if vote.answer is not None)
    shared = sum(count for count in times.values() if count > 1)
    return Standing(
        step=checkpoint,
        again=again,
        kept=kept / again if again else math.nan,
        gain=math.fsum(gains) / total if total else 0.0,
        majority_ratio=math.fsum(vote.ratio for vote in latest.values()) / total if total else math.nan,
        shared=shared / total if total else math.nan,
    )
