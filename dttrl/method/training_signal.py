"""The one function that turns a scored batch and the history into what the policy learns from.

alg:framework, lines 9-13: aggregate the confidences, vote a pseudo-label for each question, reward, measure
diversity, and weigh the advantages. It is pure: the in-process trainer, the trainer at scale and the offline
replay of a run call it with the same arrays and get the same labels. (The algorithm's line 6 computes rewards
before the labels exist; as in the text, they come from the labels here.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dttrl.errors import InputError
from dttrl.method.advantages import group_advantages, weighted_advantages
from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.confidence import positive_weights
from dttrl.method.diversity import diversity, diversity_weights
from dttrl.method.history import Progressive
from dttrl.method.labels import label_weights, rewards
from dttrl.method.latent import Latent
from dttrl.method.methods import Signal
from dttrl.method.partition import centred
from dttrl.method.scored import Scored
from dttrl.method.selection import IndexArray, select
from dttrl.method.voting.distrivoting import DistriVote
from dttrl.method.voting.election import Tally, Vote, summarize
from dttrl.method.voting.registry import Memory, VoteOutcome


@dataclass(frozen=True, slots=True)
class TrainingSignal:
    """What one step learns from; arrays are (B,), (B, G) over voted or (B, M) over trained rollouts.

    A rollout that was not drawn has a reward of 0.
    """

    vote: Vote
    """``vote.winner_R`` is the pseudo-label's class for each question, -1 for none."""
    reward_BG: FloatArray
    trained_BM: IntArray | IndexArray
    """Positions of the trained rollouts among the G."""
    diversity_B: IntArray
    weight_B: FloatArray
    """Diversity weight (1 where the method has no penalty)."""
    probability_B: FloatArray | None
    """Probability that each label is right, of votes that say."""
    advantage_BM: FloatArray
    """Weighted advantages (eq:weighted-advantage); with ``weigh_labels`` by the labels' probabilities too."""
    by_gold: bool
    """Whether the labels are the gold answers."""
    distrivote: DistriVote | None
    progressive: Progressive | None
    latent: Latent | None
    entered_BG: FloatArray | None
    """The confidences that met the mixture and entered the history (centred, where that was asked for)."""

    @property
    def label_B(self) -> IntArray:
        """Class of each question's pseudo-label, -1 for none."""
        return self.vote.winner_R


def training_signal(batch: Scored, history: Memory | None, settings: Signal) -> tuple[TrainingSignal, Memory]:
    """Return the signal of a step and the history that the next step starts from.

    ``batch`` holds the B questions of the step with G rollouts each; at the first step there is no history.
    Raises :class:`InputError` when the
    method needs gold answers that the batch lacks, when a weighted vote would get negative weights, or when
    more rollouts are to be trained than voted.
    """
    history = settings.empty_memory() if history is None else history
    fitted: Progressive | Latent | None = None
    entered_BG: FloatArray | None = None
    method = settings.vote
    if method is None:
        outcome = VoteOutcome(_gold_vote(batch))
    else:
        weight_BG = batch.confidence_RN
        if method.needs_weights:
            weight_BG = positive_weights(batch.confidence_RN, batch.measure)
        empty, pool = method.memory(), None
        if empty is not None:
            entered_BG = centred(batch.confidence_RN, settings.centre)
            past = history if settings.row.history else empty
            fitted, advanced = past.pooled(batch.step or 0, batch.class_RN, entered_BG)
            history = advanced if settings.row.history else history
            pool = fitted.mixture if isinstance(fitted, Progressive) else fitted
        outcome = method.vote(batch.class_RN, weight_BG, pool, entered_BG)
    vote = outcome.vote

    reward_BG = rewards(batch.class_RN, vote.winner_R)
    drawn_BG = batch.drawn_RN
    trained_BM = select(np.where(drawn_BG, reward_BG, np.nan), settings.train_samples, how=settings.select)
    counted_BG, n_counted_B = batch.class_RN, batch.n_drawn_R
    if settings.diversity_over == "trained":
        counted_BG = np.take_along_axis(batch.class_RN, trained_BM, axis=1)
        n_counted_B = np.full_like(n_counted_B, counted_BG.shape[1])
    diversity_B = diversity(counted_BG)
    weight_B = np.ones(len(diversity_B))
    if settings.row.diversity:
        weight_B = diversity_weights(diversity_B, n_counted_B, tau=settings.tau)
    sure_B = np.ones(len(diversity_B))
    if settings.weigh_labels and outcome.probability_R is not None:
        sure_B = label_weights(outcome.probability_R)
    advantage_BM = group_advantages(np.take_along_axis(reward_BG, trained_BM, axis=1))
    signal = TrainingSignal(
        vote=vote,
        reward_BG=reward_BG,
        trained_BM=trained_BM,
        diversity_B=diversity_B,
        weight_B=weight_B,
        probability_B=outcome.probability_R,
        advantage_BM=weighted_advantages(advantage_BM, weight_B * sure_B),
        by_gold=method is None,
        distrivote=outcome.distrivote,
        progressive=fitted if isinstance(fitted, Progressive) else None,
        latent=fitted if isinstance(fitted, Latent) else None,
        entered_BG=entered_BG,
    )
    return signal, history


def _gold_vote(batch: Scored) -> Vote:
    if not batch.has_gold_R.all():
        raise InputError("method ttrl-gt labels with gold answers, but some questions have none")
    gold_B = batch.gold_class_R
    untied = Tally(gold_B, np.zeros(len(gold_B), dtype=bool), np.zeros(len(gold_B)))
    return summarize(batch.class_RN, batch.confidence_RN, untied)
