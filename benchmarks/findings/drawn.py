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


def calibration_error(probability: FloatArray, right: BoolArray, bins: int = 10) -> float:
    """Return the expected calibration error over equally wide bins.

    >>> calibration_error(np.array([0.9, 0.9]), np.array([True, False]))
    0.4
    """
    given, hit = np.nan_to_num(probability).ravel(), right.ravel().astype(np.float64)
    bin_N = np.minimum((given * bins).astype(np.int64), bins - 1)
    off = np.bincount(bin_N, given - hit, minlength=bins)
    return float(np.abs(off).sum() / len(given))
