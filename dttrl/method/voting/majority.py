"""Self-consistency (SC): the most frequent answer wins (arXiv:2203.11171), as in TTRL (arXiv:2504.16084)."""

from __future__ import annotations

from dttrl.method.voting.election import BoolArray, FloatArray, IntArray, Tally, Vote, summarize, tally


def elect(class_RN: IntArray, confidence_RN: FloatArray, voter_RN: BoolArray) -> Tally:
    """Count heads among ``voter_RN``; confidence only breaks ties."""
    return tally(class_RN, None, confidence_RN, voter_RN)


def majority(class_RN: IntArray, confidence_RN: FloatArray) -> Vote:
    """Vote by plain majority over all rollouts with an answer, whether or not they have a confidence."""
    result = elect(class_RN, confidence_RN, class_RN >= 0)
    return summarize(class_RN, confidence_RN, result, is_majority=True)
