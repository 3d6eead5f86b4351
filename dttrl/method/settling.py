"""When a question has enough rollouts: it stops when its answer stays right with a given probability.

Rollouts are drawn in blocks. After each block the latent-answer model (:mod:`dttrl.method.latent`) is fitted
to all questions drawn so far, those that have stopped included, and to the past. A question is sure where its
elected answer is right with at least the threshold's probability. One that was sure at every look over its
last rollouts (:data:`dttrl.ranges.STEADY`) stops. The others go on, to the most that there may be. A question
that has stopped stays so, whatever later fits make of it.

Which questions stop follows from the rollouts alone. So the same rollouts stop the same questions, whether
they are drawn, drawn in parts or read from a file. Axis letters: R questions, N rollouts, O questions still
open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import ABSENT, FloatArray, IntArray
from dttrl.method.measure_choice import MeasuredPast, Past
from dttrl.method.past_sums import PastSums
from dttrl.method.scored import Scored
from dttrl.method.voting.latent_vote import latent_vote
from dttrl.ranges import SampleRange

Draw = Callable[[NDArray[np.int64], range], None]
"""Draws the samples of a block for some of the questions."""
Look = Callable[[IntArray], Scored]
"""Returns the scores of the first rollouts of each question, so many as it is told; the others are ABSENT."""


@dataclass(frozen=True, slots=True)
class Unspent:
    """What was not drawn because questions were sure before.

    ``tokens`` supposes that the rollouts of a question that were not drawn are as long as those that were.
    """

    stopped: int
    """Questions that were sure before their last rollout."""
    questions: int
    rollouts: int
    """Rollouts that were not drawn."""
    budget: int
    """Rollouts that there would have been."""
    tokens: int

    def __str__(self) -> str:
        return (
            f"{self.rollouts} of {self.budget} rollouts ({self.rollouts / self.budget:.1%}), about "
            f"{self.tokens} tokens"
        )


def draw_until_sure(
    n_questions: int, budget: SampleRange, until: float, draw: Draw, look: Look, *, past: Past | None = None
) -> IntArray:
    """Draw blocks until every question stops or has all of ``budget``; return the rollouts of each (R,).

    Looks at every block anew, those held from interrupted work as well. ``past`` is what a run remembers of
    the steps before.
    """
    open_O = np.arange(n_questions)
    n_drawn_R = np.zeros(n_questions, dtype=np.int32)
    sure_looks_R = np.zeros(n_questions, dtype=np.int32)
    for block in budget.blocks():
        draw(open_O, block)
        n_drawn_R[open_O] = block.stop
        if block.stop == budget.most:
            break
        sure_R = certainty(look(n_drawn_R), past) >= until
        sure_looks_R = np.where(sure_R, sure_looks_R + 1, 0)
        open_O = open_O[sure_looks_R[open_O] < budget.looks]
        if not open_O.size:
            break
    return n_drawn_R


def certainty(scored: Scored, past: Past | None = None) -> FloatArray:
    """Return the probability (R,) that each elected answer is right, NaN where nobody has an answer.

    Where the confidence is yet to be chosen it is chosen here, as it will be for the labels. Past steps count
    where they are remembered as sums, which is where labels are those of the latent-answer vote.
    """
    if scored.candidates:
        scored, _, measured = MeasuredPast.of(past or PastSums()).settle(scored)
        past = measured.memory
    remembered = past if isinstance(past, PastSums) else PastSums()
    latent, _ = remembered.pooled(scored.step or 0, scored.class_RN, scored.confidence_RN)
    return latent_vote(scored.class_RN, scored.confidence_RN, latent)[1]


def first_rollouts(scored: Scored, n_drawn_R: IntArray) -> Scored:
    """Return classes and confidences as they were when each question had so many rollouts."""
    there_RN = np.arange(scored.class_RN.shape[1]) < n_drawn_R[:, None]
    return Scored(
        np.where(there_RN, scored.class_RN, ABSENT).astype(np.int32),
        np.where(there_RN, scored.confidence_RN, np.nan),
        scored.step,
    )
