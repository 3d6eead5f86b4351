"""DistriVoting (arXiv:2603.03872) as the paper trains with it: eq:neg_vote, eq:reject_filter, eq:final_vote.

A mixture of two Gaussians splits a question's rollouts into a positive and a negative subset. The negative
subset votes for the most likely wrong answer, positives that give that answer are rejected, and the rest of
the positives elect the label.

The reject is guarded as in DistriVoting's Algorithm 1 (and unlike the paper's equations): it applies only
where the negative and the positive vote differ. Without the guard a question on which all rollouts agree
would lose its own answer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from dttrl.method.ballots import BoolArray, FloatArray, IntArray
from dttrl.method.mixture import Mixture, Mixtures, fit_mixtures
from dttrl.method.partition import assign_positive
from dttrl.method.voting import hierarchical, weighted
from dttrl.method.voting.election import Tally, Vote, summarize, tally

VoteFunction = Literal["majority", "weighted", "hierarchical"]
Reject = Literal["guarded", "always", "off"]
VOTE_FUNCTIONS: tuple[VoteFunction, ...] = get_args(VoteFunction)
REJECTS: tuple[Reject, ...] = get_args(Reject)

FALLBACKS = ("", "degenerate", "no-positives", "few-positives", "all-rejected")
"""Why a question's label is not the filtered vote; index into this with ``fallback_R`` (0: it is)."""


class DistriVote(NamedTuple):
    """A :class:`Vote` with what the filter did; arrays are (R,)."""

    vote: Vote
    n_pos_R: IntArray
    """Positives with an answer, before the reject."""
    n_neg_R: IntArray
    """Negatives with an answer."""
    rejected_R: IntArray
    """Class that was rejected, -1 where none was."""
    fallback_R: IntArray
    """Index into :data:`FALLBACKS`."""


def distrivoting(
    class_RN: IntArray,
    confidence_RN: FloatArray,
    mixture: Mixture | Mixtures,
    *,
    f_vote: VoteFunction = "majority",
    reject: Reject = "guarded",
    refit: bool = False,
    monotone: bool = False,
    min_positives: int = 1,
    weight_RN: FloatArray | None = None,
) -> DistriVote:
    """Vote on R questions under one mixture (training) or one a question (offline).

    ``confidence_RN`` is what the mixture was fitted on and what is assigned to its components;
    ``weight_RN`` (default: the same) is what weighted and hierarchical votes sum and ties are broken by, and
    must not be negative for those two. ``refit`` fits each mixture again on what is left after the reject,
    as the offline method does. Questions whose mixture is degenerate, or that have no positive, or fewer than
    ``min_positives`` (more than 1 is not in the papers), get the plain majority, flagged in ``fallback_R``;
    ``reject="always"`` may reject every positive and then the unfiltered positive vote stands, flagged as
    well.
    """
    weight_RN = confidence_RN if weight_RN is None else weight_RN
    valid_RN = (class_RN >= 0) & np.isfinite(confidence_RN)
    positive_RN = assign_positive(confidence_RN, mixture, monotone=monotone) & valid_RN
    negative_RN = valid_RN & ~positive_RN
    plain = tally(class_RN, None, weight_RN, class_RN >= 0)
    first = _elect(f_vote, class_RN, weight_RN, positive_RN)
    against_RN = weight_RN  # a count of heads has nothing to reverse: confidences only break its ties
    if f_vote != "majority":
        against_RN = weighted.reversed_weights(weight_RN, negative_RN)
    wrong_R = _elect(f_vote, class_RN, against_RN, negative_RN).winner_R

    applies_R = (wrong_R >= 0) & (first.winner_R >= 0) & (reject != "off")
    if reject == "guarded":
        applies_R &= wrong_R != first.winner_R
    gone_RN = applies_R[:, None] & (class_RN == wrong_R[:, None])
    kept_RN = positive_RN & ~gone_RN
    if refit:
        kept_RN = _refit_positives(confidence_RN, valid_RN & ~gone_RN, kept_RN, applies_R, monotone)
    last = _elect(f_vote, class_RN, weight_RN, kept_RN)

    n_pos_R = positive_RN.sum(axis=1).astype(np.int32)
    degenerate_R = np.broadcast_to(np.asarray(mixture.is_degenerate), first.winner_R.shape)
    reasons = [degenerate_R, first.winner_R < 0, n_pos_R < min_positives, last.winner_R < 0]
    fallback_R = np.select(reasons, [1, 2, 3, 4], default=0).astype(np.int32)
    result = _choose(fallback_R, (last, plain, plain, plain, first))
    filtered_R = fallback_R == 0
    return DistriVote(
        vote=summarize(class_RN, weight_RN, result),
        n_pos_R=n_pos_R,
        n_neg_R=negative_RN.sum(axis=1).astype(np.int32),
        rejected_R=np.where(filtered_R & (gone_RN & positive_RN).any(axis=1), wrong_R, -1).astype(np.int32),
        fallback_R=np.where(plain.winner_R < 0, 0, fallback_R).astype(np.int32),
    )


def _elect(f_vote: VoteFunction, class_RN: IntArray, weight_RN: FloatArray, voter_RN: BoolArray) -> Tally:
    if f_vote == "majority":
        return tally(class_RN, None, weight_RN, voter_RN)
    elect = weighted.elect if f_vote == "weighted" else hierarchical.elect
    return elect(class_RN, weight_RN, voter_RN)


def _refit_positives(
    confidence_RN: FloatArray, left_RN: BoolArray, kept_RN: BoolArray, applies_R: BoolArray, monotone: bool
) -> BoolArray:
    """Positives after a second fit on all rollouts that are left; the first ones where it is degenerate."""
    again = fit_mixtures(np.where(left_RN & applies_R[:, None], confidence_RN, np.nan))
    positive_RN = assign_positive(confidence_RN, again, monotone=monotone) & left_RN
    use_R = applies_R & ~again.is_degenerate & positive_RN.any(axis=1)
    return np.where(use_R[:, None], positive_RN, kept_RN)


def _choose(index_R: IntArray, options: tuple[Tally, ...]) -> Tally:
    return Tally(
        winner_R=np.choose(index_R, [option.winner_R for option in options]).astype(np.int32),
        tie_R=np.choose(index_R, [option.tie_R for option in options]).astype(bool),
        margin_R=np.choose(index_R, [option.margin_R for option in options]),
    )
