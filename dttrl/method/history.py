r"""The progressive confidence distribution: past steps, shift-corrected, pooled with the current one.

eq:shift_correction moves the confidences of a past step s to the current step k by the difference of the
two midpoints, each the mean of the two component means of the step's own fit:

.. math:: \Delta_{s \to k} = m_k - m_s, \qquad m = (\mu_{pos} + \mu_{neg}) / 2

Since every past step is only translated, the aggregate of eq:aggregated_conf is
:math:`m_k + \bigcup_s (C_s - m_s)`: centred confidences are stored once, a step is appended, and one fit
in centred coordinates, moved by :math:`m_k`, is the global mixture of eq:global_gmm_split. That replaces the
refits of every past step in alg:construct_distribution and gives the same mixture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.errors import InputError
from dttrl.method.mixture import Mixture, fit_mixture

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PastStep:
    """The confidences of one step, flat, finite and centred on the midpoint of that step's own mixture.

    Without shift correction ``centred`` holds the confidences as they are.
    """

    step: int
    centred: FloatArray
    midpoint: float


class Progressive(NamedTuple):
    """What the history knows at step k."""

    mixture: Mixture
    """Global mixture of the aggregate (eq:global_gmm_split), in the units of step k's confidences."""
    local: Mixture
    """Mixture of step k's confidences alone (eq:gmm_split)."""
    shift: float
    """eq:shift_correction from the previous stored step to this one; NaN at the first."""
    pool_size: int
    """Number of confidences in the aggregate."""


@dataclass(frozen=True, slots=True)
class History:
    """Immutable memory of past confidences; :meth:`advance` returns the next one.

    ``window`` bounds how many past steps enter the aggregate (None: all, as in the paper). Without
    ``shift_correction`` past confidences are pooled as they were measured (an ablation).
    """

    steps: tuple[PastStep, ...] = ()
    window: int | None = None
    shift_correction: bool = True
    centred_mixture: Mixture | None = field(default=None)
    """Last global mixture in centred coordinates: the warm start of the next fit."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 0:
            raise InputError(f"history window must be at least 0 steps, got {self.window}")

    @property
    def pool(self) -> FloatArray:
        """All stored centred confidences, oldest step first."""
        return np.concatenate([past.centred for past in self.steps]) if self.steps else np.empty(0)

    def advance(self, step: int, confidence_BG: FloatArray) -> tuple[Progressive, History]:
        """Add the confidences of a step (any shape; not finite: left out) and fit the aggregate.

        A step without a finite confidence leaves the history as it was and has a degenerate mixture.
        Raises :class:`InputError` when ``step`` does not come after the last stored one.
        """
        if self.steps and step <= self.steps[-1].step:
            raise InputError(f"history holds step {self.steps[-1].step}; cannot add step {step} after it")
        values = np.asarray(confidence_BG, dtype=np.float64).ravel()
        values = values[np.isfinite(values)]
        local = fit_mixture(values)
        if not values.size:
            return Progressive(local, local, float("nan"), 0), self
        midpoint = local.midpoint
        origin = midpoint if self.shift_correction else 0.0
        kept = (
            self.steps
            if self.window is None
            else self.steps[len(self.steps) - min(self.window, len(self.steps)) :]
        )
        following = replace(self, steps=(*kept, PastStep(step, values - origin, midpoint)))
        centred = local.shifted(-origin)
        if kept:
            centred = fit_mixture(following.pool, start=self.centred_mixture)
        shift = midpoint - kept[-1].midpoint if kept else float("nan")
        progressive = Progressive(centred.shifted(origin), local, shift, len(following.pool))
        return progressive, replace(following, centred_mixture=centred)

    def pooled(
        self, step: int, class_BG: NDArray[np.int32], confidence_BG: FloatArray
    ) -> tuple[Progressive, History]:
        """:meth:`advance`; a mixture takes no notice of the answers."""
        del class_BG
        return self.advance(step, confidence_BG)

    def to_arrays(self) -> dict[str, FloatArray]:
        """Return the state as plain float64 arrays, exact, for a checkpoint."""
        mixture = self.centred_mixture
        fitted = [] if mixture is None or mixture.is_degenerate else astuple(mixture)[:-1]
        return {
            "step": np.array([past.step for past in self.steps], dtype=np.float64),
            "size": np.array([past.centred.size for past in self.steps], dtype=np.float64),
            "midpoint": np.array([past.midpoint for past in self.steps], dtype=np.float64),
            "pool": self.pool,
            "mixture": np.array(fitted, dtype=np.float64),  # all but why it is degenerate
        }

    def restored(self, arrays: Mapping[str, FloatArray]) -> History:
        """Return this history with the past that :meth:`to_arrays` described."""
        ends = np.cumsum(arrays["size"]).astype(np.int64)
        parts = np.split(np.asarray(arrays["pool"], dtype=np.float64), ends[:-1]) if ends.size else []
        steps = tuple(
            PastStep(int(step), part, float(midpoint))
            for step, part, midpoint in zip(arrays["step"], parts, arrays["midpoint"], strict=True)
        )
        mixture = None
        if arrays["mixture"].size:
            low, std_low, weight_low, high, std_high, weight_high, n, likelihood = arrays["mixture"].tolist()
            mixture = Mixture(low, std_low, weight_low, high, std_high, weight_high, int(n), likelihood)
        return replace(self, steps=steps, centred_mixture=mixture)
