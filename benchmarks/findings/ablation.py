"""The latent-answer model without some of its parts, on the same draws of the same rollouts.

Axis letters: F draws, R questions, N rollouts of a draw, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from drawn import Draw, Drawn
from dttrl.method import latent as model
from dttrl.method.ballots import FloatArray
from dttrl.method.class_entries import ClassEntries
from dttrl.method.latent import Latent, Sums, fit_latent, summed
from dttrl.method.past_sums import PastSums
from dttrl.method.vote_likelihood import none_and
from dttrl.method.voting.latent_vote import latent_vote
from strategies import Elected, elect, measures

STEP = 8
"""Questions of a step."""
_NEVER = -30.0
"""Logarithm of what is as good as zero."""
_STARTS = ((-1.5, 0.0), (1.0, 0.0))

Fit = Callable[[Sums], Latent]


def ablation_rows(drawn: Drawn, *, budget: int, repeats: int) -> pd.DataFrame:
    """Return a row per variant of the model: accuracy and calibration at one budget."""
    draw = drawn.draw(budget, repeats)
    rows = []
    for name, voted in variants(draw):
        rows.append({"file": drawn.name, "questions": drawn.questions, "budget": budget, "variant": name})
        rows[-1] |= measures(drawn, voted)
    return pd.DataFrame(rows)


def variants(draw: Draw) -> Iterator[tuple[str, Elected]]:
    """Yield the whole model, then each of its departures."""
    yield "plain vote", elect("sc", draw)
    yield "latent", voted(draw, fit_latent)
    with patch.object(model, "LEAST_GAIN", np.inf):
        yield "votes only (delta = 0)", voted(draw, fit_latent)
    with _constants("_CONFIDENCE_PRIOR", 1, _NEVER):
        yield "no class effect (T = 0)", voted(draw, fit_latent)
    yield "no level of a question", levelled(draw)
    with patch.object(model, "LEAST_GAIN", -np.inf):
        yield "confidence always heard", voted(draw, fit_latent)
    with patch.object(model, "WITNESSES", np.inf):
        yield "every vote a witness", voted(draw, fit_latent)
    for power in (1.0, 2.0):
        yield (
            f"lambda = {power:.0f}, none = 0.1",
            voted(draw, lambda sums, p=power: fit_latent(sums, power=p)),
        )
    yield f"one fit per {STEP} questions", stepwise(draw, window=0)
    yield f"steps of {STEP} questions with history", stepwise(draw, window=None)


def voted(draw: Draw, fit: Fit) -> Elected:
    """Vote on each draw under a fit to all of its questions."""
    found = [
        latent_vote(class_RN, confidence_RN, fit(summed(class_RN, confidence_RN)))
        for class_RN, confidence_RN in zip(*draw, strict=True)
    ]
    return Elected(np.stack([vote.winner_R for vote, _ in found]), np.stack([given for _, given in found]))


def stepwise(draw: Draw, *, window: int | None) -> Elected:
    """Vote step by step, as training does, with so many past steps in the pool (None: all)."""
    winners, given = [], []
    for class_RN, confidence_RN in zip(*draw, strict=True):
        memory, parts = PastSums(window=window), []
        for step, first in enumerate(range(0, len(class_RN), STEP), start=1):
            some = slice(first, first + STEP)
            latent, memory = memory.pooled(step, class_RN[some], confidence_RN[some])
            parts.append(latent_vote(class_RN[some], confidence_RN[some], latent))
        winners.append(np.concatenate([vote.winner_R for vote, _ in parts]))
        given.append(np.concatenate([probability_R for _, probability_R in parts]))
    return Elected(np.stack(winners), np.stack(given))


@contextmanager
def _constants(name: str, index: int, value: float) -> Iterator[None]:
    """Hold one parameter at a value by a prior that lets nothing else."""
    mean, deviation = (array.copy() for array in getattr(model, name))
    mean[index], deviation[index] = value, 1e-3
    with patch.object(model, name, (mean, deviation)):
        yield


def levelled(draw: Draw) -> Elected:
    """Vote with one level b for all questions: the mean of all confidences, and means seen from there.

    delta and T maximise the likelihood of the class means with that b; the prior is the model's.
    """
    winners, given = [], []
    for class_RN, confidence_RN in zip(*draw, strict=True):
        known_RN = (class_RN >= 0) & np.isfinite(confidence_RN)
        level = confidence_RN[known_RN].mean() if known_RN.any() else 0.0
        sums = summed(class_RN, confidence_RN - level)
        right_RC = _posterior_at_level(sums, fit_latent(sums))
        # Equal posteriors: the class of more votes.
        winners.append(np.where(sums.votes.any(axis=1), (right_RC + 1e-12 * sums.votes).argmax(axis=1), -1))
        given.append(right_RC.max(axis=1))
    return Elected(np.stack(winners).astype(np.int32), np.stack(given))


def _posterior_at_level(sums: Sums, latent: Latent) -> FloatArray:
    entries = ClassEntries.of(sums.votes[None])
    prior = np.full(sums.votes.shape, -np.inf)
    prior.flat[entries.cell_E] = model._prior_odds(entries, sums.votes[None], latent)
    has, noise = sums.known > 0, float(latent.noise)
    if not has.any() or noise <= 0:
        return none_and(prior)[0]

    def parts(at: FloatArray) -> tuple[FloatArray, FloatArray]:
        delta, variance = np.exp(at[0]) * np.sqrt(noise), np.exp(at[1]) * noise
        weight = np.where(has, 1 / (variance + noise / np.maximum(sums.known, 1.0)), 0.0)
        ratio = delta * weight * (sums.mean - 0.5 * delta)
        own = 0.5 * (np.log(np.where(has, weight, 1.0)) - weight * sums.mean**2)
        return prior + np.where(has, ratio, 0.0), own

    def cost(at: FloatArray) -> float:
        score, own = parts(at)
        mean, deviation = (array[:2] for array in model._CONFIDENCE_PRIOR)
        return float(0.5 * (((at - mean) / deviation) ** 2).sum() - none_and(score)[1].sum() - own.sum())

    best = min(
        (minimize(cost, start, method="Nelder-Mead") for start in _STARTS), key=lambda found: found.fun
    )
    return none_and(parts(best.x)[0])[0]
