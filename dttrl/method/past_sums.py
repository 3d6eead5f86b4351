"""What the latent-answer vote remembers of past steps: a few sums a question, pooled as they are.

Only contrasts within a question enter the model (:mod:`dttrl.method.latent`), and each question's own level
is integrated out. A policy that grows surer of everything moves all the means of a question together and
changes nothing, so that, unlike confidences themselves (:mod:`dttrl.method.history`), sums of past steps need
no correction of a shift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dttrl.errors import InputError
from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.latent import Latent, Sums, fit_latent, summed


@dataclass(frozen=True, slots=True)
class PastSums:
    """Immutable memory of past steps; :meth:`pooled` returns the next one.

    ``window`` bounds how many past steps are fitted with the current one (None: all). ``power`` and ``none``
    are those of :func:`dttrl.method.latent.fit_latent`.
    """

    steps: tuple[tuple[int, Sums], ...] = ()
    window: int | None = None
    power: float | None = None
    none: float | None = None
    last: Latent | None = None
    """The fit of the last step, from which the next one starts."""

    def pooled(self, step: int, class_BG: IntArray, confidence_BG: FloatArray) -> tuple[Latent, PastSums]:
        """Add the rollouts of a step, (B, G), and fit the model to them and the past.

        Raises :class:`InputError` when ``step`` does not come after the last stored one.
        """
        return self.fitted(step, summed(class_BG, confidence_BG))

    def fitted(self, step: int, sums: Sums) -> tuple[Latent, PastSums]:
        """Do as :meth:`pooled` with the sums of a step."""
        following = self.remembering(step, sums)
        latent = fit_latent(following.pool, power=self.power, none=self.none, start=self.last)
        return latent, replace(following, last=latent)

    def remembering(self, step: int, sums: Sums) -> PastSums:
        """Return this memory with a step more, which is not fitted yet; raises as :meth:`pooled`."""
        if self.steps and step <= self.steps[-1][0]:
            raise InputError(f"history holds step {self.steps[-1][0]}; cannot add step {step} after it")
        kept = self.steps if self.window is None else self.steps[max(len(self.steps) - self.window, 0) :]
        return replace(self, steps=(*kept, (step, sums)))

    @property
    def pool(self) -> Sums:
        """All questions that are remembered, oldest step first."""
        return Sums.joined([sums for _, sums in self.steps])

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return the state as plain float64 arrays, exact, for a checkpoint."""
        pool = self.pool if self.steps else Sums(*[np.empty((0, 0))] * 4)
        return {
            "step": np.array([step for step, _ in self.steps], dtype=np.float64),
            "questions": np.array([len(sums.votes) for _, sums in self.steps], dtype=np.float64),
            "latent": np.empty(0) if self.last is None else self.last.to_array(),
            **pool._asdict(),
        }

    def restored(self, arrays: Mapping[str, FloatArray]) -> PastSums:
        """Return this memory with the past that :meth:`to_arrays` described."""
        ends = np.cumsum(arrays["questions"]).astype(np.int64)[:-1]
        split = [np.split(arrays[name], ends) for name in Sums._fields]
        steps = tuple((int(step), Sums(*parts)) for step, *parts in zip(arrays["step"], *split, strict=False))
        latent = Latent.from_array(arrays["latent"]) if arrays["latent"].size else None
        return replace(self, steps=steps, last=latent)
