"""Answer classes as a flat list, one entry each: most questions have few, and a table of all is mostly empty.

Axis letters: F pools of questions, R questions of a pool, C classes; E entries, Q questions that have any, in
the order of pools, questions and classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dttrl.method.ballots import FloatArray

IndexArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class ClassEntries:
    """The classes with votes of F pools of questions."""

    cell_E: IndexArray
    """Place in the flattened table (F, R, C)."""
    first_Q: IndexArray
    """First entry of each question."""
    question_E: IndexArray
    """Question of each entry, counted from 0 over all pools."""
    fit_Q: IndexArray
    """Pool of each question."""
    n_fits: int

    @staticmethod
    def of(votes_FRC: FloatArray) -> ClassEntries:
        """Return the entries of a table of votes."""
        n_fits, n_questions, n_classes = votes_FRC.shape
        cell_E = np.flatnonzero(votes_FRC.ravel() > 0)
        row_E = cell_E // max(n_classes, 1)
        new_E = np.diff(row_E, prepend=-1) > 0
        first_Q = np.flatnonzero(new_E)
        fit_Q = row_E[first_Q] // max(n_questions, 1)
        return ClassEntries(cell_E, first_Q, np.cumsum(new_E) - 1, fit_Q, n_fits)

    def flat(self, table_FRC: FloatArray) -> FloatArray:
        """Return the values (E,) that a table has at the entries."""
        return np.asarray(table_FRC.ravel()[self.cell_E])

    def total(self, value_E: FloatArray) -> FloatArray:
        """Sum by question, (Q,)."""
        return np.add.reduceat(value_E, self.first_Q) if value_E.size else np.empty(0)

    def spread(self, value_Q: FloatArray) -> FloatArray:
        """Return each question's value at its entries, (E,)."""
        return value_Q[self.question_E]

    def none_and(self, odds_E: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return exp(odds) / (1 + its sum by question), (E,), and the logarithms of the denominators, (Q,).

        The 1 stands for "none is right", to which the odds are logarithms.
        """
        if not odds_E.size:
            return np.empty(0), np.empty(0)
        top_Q = np.maximum(np.maximum.reduceat(odds_E, self.first_Q), 0.0)
        part_E = np.exp(odds_E - self.spread(top_Q))
        total_Q = self.total(part_E) + np.exp(-top_Q)
        return part_E / self.spread(total_Q), np.log(total_Q) + top_Q

    def by_fit(self, value_Q: FloatArray) -> FloatArray:
        """Sum by pool, (F,)."""
        return np.asarray(np.bincount(self.fit_Q, weights=value_Q, minlength=self.n_fits), dtype=np.float64)

    def of_fit(self, value_F: FloatArray) -> FloatArray:
        """Return each pool's value at its entries, (E,)."""
        return value_F[self.fit_Q][self.question_E]

    def some(self, keep_Q: NDArray[np.bool_]) -> tuple[ClassEntries, NDArray[np.bool_]]:
        """Return the entries of some questions, and which of these entries they are, (E,)."""
        keep_E = keep_Q[self.question_E]
        question_E = (np.cumsum(keep_Q) - 1)[self.question_E[keep_E]]
        first_Q = np.flatnonzero(np.diff(question_E, prepend=-1) > 0)
        kept = ClassEntries(self.cell_E[keep_E], first_Q, question_E, self.fit_Q[keep_Q], self.n_fits)
        return kept, keep_E
