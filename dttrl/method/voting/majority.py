"""Self-consistency (SC): the most frequent answer wins (arXiv:2203.11171), as in TTRL (arXiv:2504.16084)."""

from __future__ import annotations

from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.voting.election import Vote, summarize, tally


def majority(class_RN: IntArray, confidence_RN: FloatArray) -> Vote:
    """Vote by plain majority over all rollouts with an answer; confidence only breaks ties."""
    result = tally(class_RN, None, confidence_RN, class_RN >= 0)
    return summarize(class_RN, confidence_RN, result, is_majority=True)
