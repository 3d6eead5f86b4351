"""Where rollouts stand by confidence: what best-of-N over bootstraps and Borda votes are made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import BoolArray, FloatArray

Positions = NDArray[np.int64]


class Ranks(NamedTuple):
    """Voters in ascending order of confidence, with the block of equals that each stands in.

    Arrays are (R, N); entries from ``count_R`` on are not voters.
    """

    order_RN: Positions
    """Position of the rollout that stands at each place; equals in sample order, non-voters last."""
    first_RN: Positions
    """Voters below the block of equals of each place."""
    last_RN: Positions
    """Voters below and in it: ``last - first`` is the size of the block (1 where there is no voter)."""
    count_R: Positions
    """Voters of each row."""


def rank(confidence_RN: FloatArray, voter_RN: BoolArray) -> Ranks:
    """Sort the voters of each row by confidence."""
    value_RN = np.where(voter_RN, confidence_RN, np.inf)
    order_RN = np.argsort(value_RN, axis=1, kind="stable")
    count_R = voter_RN.sum(axis=1)
    n_rollouts = value_RN.shape[1]
    place_N = np.arange(n_rollouts)
    sorted_RN = np.take_along_axis(value_RN, order_RN, axis=1)
    is_voter_RN = place_N < count_R[:, None]
    opens_RN = np.ones(sorted_RN.shape, dtype=bool)
    opens_RN[:, 1:] = (sorted_RN[:, 1:] != sorted_RN[:, :-1]) | ~is_voter_RN[:, 1:]
    if opens_RN.all():
        first_RN = np.broadcast_to(place_N, sorted_RN.shape)
        return Ranks(order_RN, first_RN, first_RN + 1, count_R)
    first_RN = np.maximum.accumulate(np.where(opens_RN, place_N, 0), axis=1)
    closes_RN = np.roll(opens_RN, -1, axis=1)
    closes_RN[:, -1] = True
    last_RN = np.minimum.accumulate(np.where(closes_RN, place_N, n_rollouts)[:, ::-1], axis=1)[:, ::-1] + 1
    return Ranks(order_RN, first_RN, last_RN, count_R)


def share_by_table(ranks: Ranks, table_RN1: FloatArray) -> FloatArray:
    """Give the place k of a row ``table[k + 1] - table[k]``, shared out evenly within a block of equals.

    ``table_RN1`` is (R, N + 1) or (1, N + 1), cumulative over the places. Returns (R, N) by place.
    """
    table = np.broadcast_to(table_RN1, (len(ranks.order_RN), ranks.order_RN.shape[1] + 1))
    high_RN = np.take_along_axis(table, ranks.last_RN, axis=1)
    low_RN = np.take_along_axis(table, ranks.first_RN, axis=1)
    shared_RN: FloatArray = (high_RN - low_RN) / (ranks.last_RN - ranks.first_RN)
    return shared_RN


def by_sample(ranks: Ranks, value_RN: FloatArray) -> FloatArray:
    """Return values given by place in sample order."""
    result_RN = np.empty_like(value_RN)
    np.put_along_axis(result_RN, ranks.order_RN, value_RN, axis=1)
    return result_RN
