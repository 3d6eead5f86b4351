"""Votes filed by election and answer class, and summed there.

Arrays are ``(R, N)``: R independent elections (questions of a step, or repeats of a budget), N rollouts in
sample order. ``class_RN`` int32 holds the answer class of a rollout within its election, -1 for none and
:data:`ABSENT` for a rollout that was never drawn, which counts nowhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

ABSENT = -2
"""Class of a rollout that was not drawn, as its question was sure without it."""


class Ballots(NamedTuple):
    """Votes filed under election and class; those of no voter lie in one more class at the end."""

    cell_RN: NDArray[np.int64]
    n_elections: int
    n_classes: int
    by_row: bool
    """Whether each row is an election."""

    def sums(self, value_RN: FloatArray | None) -> FloatArray:
        """Sum by election and class, (elections, C); None counts."""
        width = self.n_classes + 1
        weights = None if value_RN is None else value_RN.ravel()
        sums = np.bincount(self.cell_RN.ravel(), weights=weights, minlength=self.n_elections * width)
        return sums.astype(np.float64).reshape(self.n_elections, width)[:, : self.n_classes]


def filed(
    class_RN: IntArray,
    voter_RN: BoolArray,
    election_RN: NDArray[np.int64] | None = None,
    n_elections: int | None = None,
) -> Ballots:
    """File the votes; ``election_RN`` says in which of ``n_elections`` a rollout votes (default: its row)."""
    n_classes = int(class_RN.max(initial=-1)) + 1
    rows = np.arange(len(class_RN))[:, None] if election_RN is None else election_RN
    cell_RN = rows * (n_classes + 1) + np.where(voter_RN, class_RN, n_classes)
    size = len(class_RN) if n_elections is None else n_elections
    return Ballots(cell_RN, size, n_classes, by_row=election_RN is None)


def class_sums(class_RN: IntArray, value_RN: NDArray[np.generic], voter_RN: BoolArray) -> FloatArray:
    """Sum ``value_RN`` by class over the voters; returns float64 (R, C) with C the largest class + 1."""
    ballots = filed(class_RN, voter_RN)
    return ballots.sums(np.where(voter_RN, np.asarray(value_RN, dtype=np.float64), 0.0))
