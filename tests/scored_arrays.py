"""Scores made of arrays, for tests that have no texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dttrl.method.scored import Scored

NO_GOLD = -2
"""Gold class of a question without a gold answer; -1 is one that no rollout gave."""


def with_gold(scored: Scored, gold_class: Sequence[int]) -> Scored:
    """Return the scores with the class of each question's gold answer."""
    number_R = np.asarray(gold_class)
    width = int(max(scored.class_RN.max(), number_R.max(), 0)) + 1
    return replace(
        scored,
        gold=[None if number == NO_GOLD else str(number) for number in number_R.tolist()],
        right_RC=number_R[:, None] == np.arange(width),
    )
