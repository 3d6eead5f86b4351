"""Draws of a budget from a file's rollouts, the same for every strategy.

Axis letters: F draws, R questions, N rollouts of a draw, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dttrl.analysis.budget import draws, read_benchmark
from dttrl.method.scored import BoolArray, FloatArray, IntArray, Scored


class Draw(NamedTuple):
    """Rollouts of all questions at a budget; arrays (F, R, N)."""

    class_FRN: IntArray
    confidence_FRN: FloatArray


@dataclass(frozen=True)
class Drawn:
    """A file's questions with a gold answer, and their rollouts."""

    name: str
    blocks: list[Scored]
    has_confidence: bool

    @property
    def size(self) -> int:
        """The fewest rollouts of a question."""
        return min(block.class_RN.shape[1] for block in self.blocks)

    @property
    def questions(self) -> int:
        """How many there are."""
        return sum(len(block.query_id) for block in self.blocks)

    def draw(self, budget: int, repeats: int) -> Draw:
        """Draw ``budget`` rollouts of each question, ``repeats`` times (once where they are all)."""
        classes, confidences = [], []
        for block in self.blocks:
            size = block.class_RN.shape[1]
            for r, query in enumerate(block.query_id):
                (at_FN,) = draws(query, size, [budget], repeats=repeats, seed=0)
                at_FN = np.broadcast_to(at_FN, (repeats, budget)) if self.size > budget else at_FN
                classes.append(block.class_RN[r][at_FN])
                confidences.append(block.confidence_RN[r][at_FN])
        return Draw(np.stack(classes, axis=1), np.stack(confidences, axis=1))

    def right(self, winner_FR: IntArray) -> BoolArray:
        """Whether the winners of draws are right."""
        ends = np.cumsum([len(block.query_id) for block in self.blocks])[:-1]
        parts = zip(self.blocks, np.split(winner_FR, ends, axis=1), strict=True)
        return np.concatenate([block.right(winner_FB.T).T for block, winner_FB in parts], axis=1)


def read_drawn(path: Path) -> Drawn:
    """Read the scored rollouts of a file; confidences are positive, as strategies sum them."""
    benchmark = read_benchmark(path, methods=("wsc",))
    return Drawn(path.name.removesuffix(".parquet"), benchmark.blocks, benchmark.has_confidence)


def brier(probability: FloatArray, right: BoolArray) -> float:
    """Return the mean squared error of probabilities; what has none counts as 0."""
    return float(((np.nan_to_num(probability) - right) ** 2).mean())


def calibration_error(probability: FloatArray, right: BoolArray, bins: int = 10, mass: bool = False) -> float:
    """Return the expected calibration error over equally wide bins, or over bins of as many values.

    >>> calibration_error(np.array([0.9, 0.9]), np.array([True, False]))
    0.4
    """
    given, hit = np.nan_to_num(probability).ravel(), right.ravel().astype(np.float64)
    edges = np.quantile(given, np.linspace(0, 1, bins + 1)) if mass else np.linspace(0, 1, bins + 1)
    # Equal values are in one bin, so that bins of as many values can be fewer.
    bin_N = np.searchsorted(np.unique(edges[1:-1]), given, side="right")
    off = np.bincount(bin_N, given - hit, minlength=bins)
    return float(np.abs(off).sum() / len(given))


def least_calibration_error(probability_FR: FloatArray, *, repeats: int = 200, seed: int = 0) -> float:
    """Return the calibration error (equally wide bins) that exactly right probabilities would have.

    A mean over simulated truths. A question has one random number in all draws: their winners are mostly one
    answer, which is right in all of them or in none.
    """
    given_FR = np.nan_to_num(probability_FR)
    level_SR = np.random.default_rng(seed).random((repeats, given_FR.shape[1]))
    return float(np.mean([calibration_error(given_FR, level_R < given_FR) for level_R in level_SR]))
