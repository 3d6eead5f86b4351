"""Which of the voting rollouts are trained on: 64 vote, 32 train (the paper's and TTRL's downsampling)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dttrl.errors import InputError
from dttrl.method.ballots import FloatArray

Select = Literal["first", "balanced"]

IndexArray = NDArray[np.int64]


def select(reward_BG: FloatArray, n_train: int, *, how: Select = "first") -> IndexArray:
    """Return the positions (B, M) of the rollouts to train on, ascending within a question.

    A reward of NaN is a rollout that was not drawn, which only the end of a row has.

    ``first`` takes the first M in sample order, as TTRL does: samples are exchangeable, so this is a random
    half. ``balanced`` takes as near to M/2 rewarded and M/2 unrewarded rollouts as there are, each group in
    sample order; it changes the reward statistics that the advantage is normalised with.
    """
    n_questions, n_votes = reward_BG.shape
    n_votes = int((~np.isnan(reward_BG)).sum(axis=1).min(initial=n_votes))
    if not 1 <= n_train <= n_votes:
        raise InputError(
            f"cannot train on {n_train} of {n_votes} rollouts a question: "
            "train-samples must be at least 1 and at most votes"
        )
    if how == "first":
        return np.broadcast_to(np.arange(n_train), (n_questions, n_train)).copy()
    return np.stack([_balanced(reward_G, n_train) for reward_G in reward_BG])


def _balanced(reward_G: FloatArray, n_train: int) -> IndexArray:
    rewarded, unrewarded = np.flatnonzero(reward_G > 0), np.flatnonzero(reward_G <= 0)
    n_rewarded = min(len(rewarded), max(n_train // 2, n_train - len(unrewarded)))
    chosen = np.concatenate([rewarded[:n_rewarded], unrewarded[: n_train - n_rewarded]])
    return np.sort(chosen)
