"""The one function that turns a scored batch and the history into what the policy learns from.

alg:framework, lines 9-13: aggregate the confidences, vote a pseudo-label for each question, reward, measure
diversity, and weigh the advantages. It is pure: the in-process trainer, the trainer at scale and the offline
replay of a run call it with the same arrays and get the same labels. (The algorithm's line 6 computes rewards
before the labels exist; as in the text, they come from the labels here.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dttrl.advantages import group_advantages, weighted_advantages
from dttrl.confidence import positive_weights
from dttrl.diversity import diversity, diversity_weights
from dttrl.errors import InputError
from dttrl.history import History, Progressive
from dttrl.labels import rewards
from dttrl.methods import LabelStrategy, Method
from dttrl.scored import Scored
from dttrl.selection import IndexArray, Select, select
from dttrl.voting.distrivoting import DistriVote, Reject, VoteFunction, distrivoting
from dttrl.voting.election import FloatArray, IntArray, Tally, Vote, summarize
from dttrl.voting.majority import majority
from dttrl.voting.weighted import weighted

Centre = Literal["none", "question"]
DiversityOver = Literal["voted", "trained"]


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """The choices beyond the method's row; the defaults are the paper's."""

    n_train: int = 32
    select: Select = "first"
    tau: float = 0.1
    diversity_over: DiversityOver = "voted"
    f_vote: VoteFunction = "majority"
    reject: Reject = "guarded"
    monotone: bool = False
    min_positives: int = 1
    """With fewer positives a question's label is the plain majority (more than 1: not in the paper)."""
    centre: Centre = "none"
    """``question`` takes a question's mean from its confidences before they meet the mixture, which then
    sees confidence and not difficulty (not in the paper)."""


@dataclass(frozen=True, slots=True)
class TrainingSignal:
    """What one step learns from; arrays are (B,), (B, G) over voted or (B, M) over trained rollouts."""

    vote: Vote
    """``vote.winner_R`` is the pseudo-label's class for each question, -1 for none."""
    reward_BG: FloatArray
    trained_BM: IntArray | IndexArray
    """Positions of the trained rollouts among the G."""
    diversity_B: IntArray
    weight_B: FloatArray
    """Diversity weight (1 where the method has no penalty)."""
    advantage_BM: FloatArray
    """Weighted advantages (eq:weighted-advantage)."""
    label_strategy: LabelStrategy
    distrivote: DistriVote | None
    progressive: Progressive | None
    entered_BG: FloatArray | None
    """The confidences that met the mixture and entered the history (centred, where that was asked for)."""

    @property
    def label_B(self) -> IntArray:
        """Class of each question's pseudo-label, -1 for none."""
        return self.vote.winner_R


def training_signal(
    batch: Scored, history: History, method: Method, settings: SignalSettings
) -> tuple[TrainingSignal, History]:
    """Return the signal of a step and the history that the next step starts from.

    ``batch`` holds the B questions of the step with G rollouts each. Raises :class:`InputError` when the
    method needs gold answers that the batch lacks, when a weighted vote would get negative weights, or when
    more rollouts are to be trained than voted.
    """
    weight_BG = batch.confidence_RN
    if method.label == "weighted" or (method.label == "distrivoting" and settings.f_vote != "majority"):
        weight_BG = positive_weights(batch.confidence_RN, batch.measure)
    distrivote, progressive, entered_BG = None, None, None
    if method.label == "distrivoting":
        entered_BG = _centred(batch.confidence_RN, settings.centre)
        past = history if method.progressive else History()
        progressive, advanced = past.advance(batch.step or 0, entered_BG)
        history = advanced if method.progressive else history
        distrivote = distrivoting(
            batch.class_RN,
            entered_BG,
            progressive.mixture,
            f_vote=settings.f_vote,
            reject=settings.reject,
            monotone=settings.monotone,
            min_positives=settings.min_positives,
            weight_RN=weight_BG,
        )
        vote = distrivote.vote
    elif method.label == "weighted":
        vote = weighted(batch.class_RN, weight_BG)
    elif method.label == "ground-truth":
        vote = _gold_vote(batch, weight_BG)
    else:
        vote = majority(batch.class_RN, weight_BG)

    reward_BG = rewards(batch.class_RN, vote.winner_R)
    trained_BM = select(reward_BG, settings.n_train, how=settings.select)
    counted_BG = batch.class_RN
    if settings.diversity_over == "trained":
        counted_BG = np.take_along_axis(batch.class_RN, trained_BM, axis=1)
    diversity_B = diversity(counted_BG)
    weight_B = np.ones(len(diversity_B))
    if method.diversity:
        weight_B = diversity_weights(diversity_B, counted_BG.shape[1], tau=settings.tau)
    advantage_BM = group_advantages(np.take_along_axis(reward_BG, trained_BM, axis=1))
    signal = TrainingSignal(
        vote=vote,
        reward_BG=reward_BG,
        trained_BM=trained_BM,
        diversity_B=diversity_B,
        weight_B=weight_B,
        advantage_BM=weighted_advantages(advantage_BM, weight_B),
        label_strategy=method.label,
        distrivote=distrivote,
        progressive=progressive,
        entered_BG=entered_BG,
    )
    return signal, history


def _centred(confidence_BG: FloatArray, centre: Centre) -> FloatArray:
    if centre == "none":
        return confidence_BG
    finite_BG = np.isfinite(confidence_BG)
    total_B = np.where(finite_BG, confidence_BG, 0.0).sum(axis=1, keepdims=True)
    centred: FloatArray = confidence_BG - total_B / np.maximum(finite_BG.sum(axis=1, keepdims=True), 1)
    return centred


def _gold_vote(batch: Scored, weight_BG: FloatArray) -> Vote:
    if not batch.has_gold_R.all():
        raise InputError("method ttrl-gt labels with gold answers, but some questions have none")
    gold_B = batch.gold_class_R
    untied = Tally(gold_B, np.zeros(len(gold_B), dtype=bool), np.zeros(len(gold_B)))
    return summarize(batch.class_RN, weight_BG, untied)
