"""Every voting strategy at every budget, with the calibration of those that give a probability.

Axis letters: F draws, R questions, N rollouts of a draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from drawn import Draw, Drawn, brier, calibration_error, least_calibration_error
from dttrl.method.scored import FloatArray, IntArray
from dttrl.method.voting.registry import METHODS, parse_method

BUDGETS = (8, 16, 32, 64, 128, 256)
CALIBRATION = (
    "expected", "brier", "calibration_error", "calibration_error_mass", "calibration_error_least",
)  # fmt: skip
"""What only a strategy with probabilities has."""


class Elected(NamedTuple):
    """Winners of draws, and the probability that comes with them (None: the strategy has none)."""

    winner_FR: IntArray
    probability_FR: FloatArray | None


def offline_rows(drawn: Drawn, *, repeats: int) -> pd.DataFrame:
    """Return a row per budget and strategy: accuracy, its deviation over draws, and calibration."""
    rows = [
        {"file": drawn.name, "questions": drawn.questions, "budget": budget, "method": name, **found}
        for budget in (*(b for b in BUDGETS if b < drawn.size), drawn.size)
        if budget in BUDGETS or budget == drawn.size
        for name, found in _measured(drawn, drawn.draw(budget, repeats))
    ]
    return pd.DataFrame(rows)


def _measured(drawn: Drawn, draw: Draw) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, info in METHODS.items():
        if drawn.has_confidence or not info.needs_confidence:
            yield name, measures(drawn, elect(name, draw))


def measures(drawn: Drawn, elected: Elected) -> dict[str, Any]:
    """Return accuracy, its standard deviation over draws, and the calibration of the probabilities."""
    right_FR = drawn.right(elected.winner_FR)
    given = elected.probability_FR
    measured = {
        "accuracy": float(right_FR.mean()),
        "deviation": float(right_FR.mean(axis=1).std()),
        "draws": len(right_FR),
    }
    if given is None:
        return measured | dict.fromkeys(CALIBRATION)
    return measured | {
        "expected": float(np.nan_to_num(given).mean()),
        "brier": brier(given, right_FR),
        "calibration_error": calibration_error(given, right_FR),
        "calibration_error_mass": calibration_error(given, right_FR, mass=True),
        "calibration_error_least": least_calibration_error(given),
    }


def elect(name: str, draw: Draw) -> Elected:
    """Vote on every draw; strategies of a pool fit one draw of all questions."""
    method = parse_method(name)
    shape = draw.class_FRN.shape[:2]
    pools = zip(draw.class_FRN, draw.confidence_FRN, strict=True)
    if not method.info.pooled:
        flat = (array.reshape(-1, array.shape[-1]) for array in draw)
        pools = iter([tuple(flat)])  # type: ignore[assignment]
    outcomes = [method.vote(class_RN, confidence_RN) for class_RN, confidence_RN in pools]
    winner = np.concatenate([outcome.vote.winner_R for outcome in outcomes]).reshape(shape)
    if name == "sc":
        ratio = np.concatenate([outcome.vote.majority_ratio_R for outcome in outcomes])
        return Elected(winner, ratio.reshape(shape))
    given = [outcome.probability_R for outcome in outcomes if outcome.probability_R is not None]
    return Elected(winner, np.concatenate(given).reshape(shape) if given else None)
