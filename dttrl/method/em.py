"""Maximum likelihood of many two-Gaussian mixtures at once: EM, sped up by damped Newton steps.

Parameters travel as ``(F, 5)`` float64 arrays, F independent fits: mean_low, mean_high, std_low, std_high,
weight_low. Data are standardised by the caller: tolerances and floors are in units of their deviation.

Inside, values are the leading axis: ``x_NF``, parameters ``(5, F)``, so that numpy runs along F. An iteration
costs one exponential a value: the log-odds of the components is a parabola in x, and the M step and the
Newton step need only the sums of r x^k (k to 2) and of r (1 - r) x^k (k to 4).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]

MIN_SPREAD = 1e-3
"""A component narrower than this share of the data's standard deviation has collapsed onto equal values."""
MIN_WEIGHT = 1e-3
"""A component lighter than this (or than about two points) describes outliers, not a class of rollouts."""
MIN_GAP = 1e-4
"""Means nearer than this many standard deviations of the data are one component."""
TOLERANCE = 1e-7
"""Fits stop when the next step moves no parameter of the standardised data by more than this."""
MAX_ITERATIONS = 200
CACHED_VALUES = 2**17
"""Fits are worked on in blocks of about this many values, which stay in the processor's cache."""

_WARM_UP = 5
"""EM steps of a fit before its first Newton step is tried."""
_DAMPING = 0.1
_LONGEST = 0.5
"""No coordinate moves further than this in a Newton step."""
_CROWD = 0.75
"""Finished fits are cleared away when fewer than this share are on their way."""
_LARGEST = 700.0
"""Log-odds are cut here, before their exponential overflows."""
_SAME = 0.02
"""Fits of one row that are this near in every parameter after the first EM steps have met."""
_STILL = 1e-10
"""An EM step as short as this is rounding."""
_LIKELIHOOD_NOISE = 1e-13
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


def maximise_likelihood(
    data_RN: FloatArray, count_RN: FloatArray, start_F5: FloatArray, row_F: IndexArray | None = None
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Climb from ``start_F5``; returns parameters (F, 5), mean log-likelihood (F,) and health (F,).

    ``count_RN`` says how many values an entry stands for (0: missing; its value must be finite all the same).
    Fit f is to the data of row ``row_F[f]`` (default: row f). Overlapping components make plain EM crawl for
    thousands of iterations, so after a few EM steps a Newton step is tried, damped where it failed before;
    one that lowers the likelihood is taken back for the EM step, which cannot. Fits leave as they converge
    or collapse, and others take their places.
    """
    row_F = np.arange(len(data_RN)) if row_F is None else row_F
    result, likelihood_F = start_F5.copy(), np.full(len(row_F), -np.inf)
    climb = _Climb(data_RN, count_RN, row_F, result, likelihood_F)
    size = min(4096, max(8, CACHED_VALUES // max(data_RN.shape[1], 1)))
    with np.errstate(all="ignore"):
        for first in range(0, len(row_F), size // 2):
            climb.admit(np.arange(first, min(first + size // 2, len(row_F))))
            climb.run(leave=size // 2)
        climb.run(leave=0)
    result = in_order(result.T).T
    return result, likelihood_F, is_healthy(result, count_RN.sum(axis=1)[row_F])


def in_order(parameters_5F: FloatArray) -> FloatArray:
    """Return the parameters of fits (5, F), or of one, the component of the lower mean first."""
    low, high, std_low, std_high, weight = parameters_5F
    ordered: FloatArray = np.where(low > high, [high, low, std_high, std_low, 1 - weight], parameters_5F)
    return ordered


def is_healthy(parameters_F5: FloatArray, n_F: FloatArray) -> NDArray[np.bool_]:
    """Return which fits have two separate components of real weight and spread, bool (F,)."""
    parameters_5F = np.asarray(parameters_F5).T
    # Two points, less what rounding and the tail of the other component take from them.
    light_F = np.maximum(MIN_WEIGHT, 1.5 / np.maximum(n_F, 1))
    apart_F = np.abs(parameters_5F[1] - parameters_5F[0]) >= MIN_GAP
    healthy: NDArray[np.bool_] = _is_alive(parameters_5F, light_F) & apart_F
    return healthy


def _is_alive(parameters_5F: FloatArray, light_F: FloatArray) -> NDArray[np.bool_]:
    _, _, std_low, std_high, weight = parameters_5F
    alive: NDArray[np.bool_] = (
        np.isfinite(parameters_5F.sum(axis=0))
        & (np.minimum(std_low, std_high) >= MIN_SPREAD)
        & (np.minimum(weight, 1 - weight) >= light_F)
    )
    return alive


class _Sums(NamedTuple):
    """What one look at all values gives, per fit: all (F,) but ``shared``, which is (5, F)."""

    likelihood: FloatArray
    r0: FloatArray
    r1: FloatArray
    r2: FloatArray
    """Sums of r x^k with r the probability of the low component."""
    shared: FloatArray
    """Sums of r (1 - r) x^k, k = 0..4."""


class _Block:
    """The values of some fits with what is computed from them once."""

    def __init__(self, data_FN: FloatArray, count_FN: FloatArray) -> None:
        self.x_NF = np.ascontiguousarray(data_FN.T)
        self.square_NF = self.x_NF**2
        self.count_NF = np.ascontiguousarray(count_FN.T)
        self.whole = bool((count_FN == 1).all())
        self.n_F = self.count_NF.sum(axis=0)
        first_F, second_F = _dot(self.count_NF, self.x_NF), _dot(self.count_NF, self.square_NF)
        self.total_3F = np.stack([self.n_F, first_F, second_F])
        self._work = np.empty((5, 0))

    def keep(self, rows: IndexArray, more: _Block | None = None) -> None:
        """Go on with some of the fits, and with those of another block."""
        for name in ("x_NF", "square_NF", "count_NF", "n_F", "total_3F"):
            kept = getattr(self, name)[..., rows]
            setattr(
                self, name, kept if more is None else np.concatenate([kept, getattr(more, name)], axis=-1)
            )
        self.whole = self.whole and (more is None or more.whole)

    def look(self, parameters_5F: FloatArray, *, curved: bool = True) -> _Sums:
        """E step: likelihood and moments under the parameters; ``curved`` with those of the Hessian.

        With d the log-odds of the narrower component, the log-density of the mixture is that of the wider one
        plus ``log(1 + exp(d))``: d is hugely negative far from the narrow component, and nothing large is
        subtracted from anything large.
        """
        low, high, std_low, std_high, weight = parameters_5F
        weight = np.clip(weight, 1e-300, 1 - 1e-16)
        narrow_low = std_low <= std_high
        p_low, p_high = 0.5 / std_low**2, 0.5 / std_high**2
        height_low, height_high = np.log(weight) - np.log(std_low), np.log1p(-weight) - np.log(std_high)
        base = height_low - p_low * low**2 - height_high + p_high * high**2
        slope, bend = 2 * (p_low * low - p_high * high), p_high - p_low
        sign = np.where(narrow_low, 1.0, -1.0)
        d, r, s, t = self._buffers()
        x, square = self.x_NF, self.square_NF
        np.multiply(x, sign * bend, out=d)
        d += sign * slope
        d *= x
        d += sign * base
        np.minimum(d, _LARGEST, out=d)
        np.exp(d, out=d)
        np.add(d, 1.0, out=t)
        np.divide(1.0, t, out=s)  # probability of the wider component
        np.multiply(d, s, out=r)
        s *= r
        np.log(t, out=t)
        if self.whole:
            gain = t.sum(axis=0)
        else:
            gain = _dot(t, self.count_NF)
            r *= self.count_NF
            s *= self.count_NF
        n, first, second = self.total_3F
        p_wide, wide = np.where(narrow_low, p_high, p_low), np.where(narrow_low, high, low)
        total = gain - p_wide * (second - 2 * wide * first + wide**2 * n)
        likelihood = total / n + np.where(narrow_low, height_high, height_low) - _HALF_LOG_2PI
        moments = [r.sum(axis=0), _dot(r, x), _dot(r, square)]
        r0, r1, r2 = (
            np.where(narrow_low, moment, whole - moment)
            for moment, whole in zip(moments, self.total_3F, strict=True)
        )
        if not curved:
            return _Sums(likelihood, r0, r1, r2, np.empty((5, 0)))
        np.multiply(s, square, out=t)
        shared = np.stack([s.sum(axis=0), _dot(s, x), t.sum(axis=0), _dot(t, x), _dot(t, square)])
        return _Sums(likelihood, r0, r1, r2, shared)

    def _buffers(self) -> list[FloatArray]:
        """Four arrays like ``x_NF``: new ones each time would be fetched from the system, page by page."""
        size = self.x_NF.size
        if self._work.shape[1] < size:
            self._work = np.empty((4, size))
        return [row[:size].reshape(self.x_NF.shape) for row in self._work]


def _dot(a_NF: FloatArray, b_NF: FloatArray) -> FloatArray:
    result: FloatArray = np.einsum("nf,nf->f", a_NF, b_NF)
    return result


class _Climb:
    """Fits on their way up: ``at`` is where the next look is, ``fallback`` the last EM step."""

    def __init__(
        self,
        data_RN: FloatArray,
        count_RN: FloatArray,
        row_F: IndexArray,
        result_F5: FloatArray,
        likelihood_F: FloatArray,
    ) -> None:
        self._data, self._count, self._row = data_RN, count_RN, row_F
        self._result, self._likelihood = result_F5, likelihood_F
        width = data_RN.shape[1]
        self._block = _Block(np.empty((0, width)), np.empty((0, width)))
        self._fit = np.empty(0, dtype=np.intp)
        self._at = self._fallback = np.empty((5, 0))
        self._reached, self._damping = np.empty(0), np.empty(0)
        self._daring, self._open = np.empty(0, dtype=bool), np.empty(0, dtype=bool)
        self._age = np.empty(0, dtype=np.intp)

    def admit(self, fits: IndexArray) -> None:
        """Start some more fits: EM steps at first, after which fits that have met go on as one."""
        rows = self._row[fits]
        start = self._result[fits].T
        block = _Block(self._data[rows], self._count[rows])
        sums = block.look(start, curved=False)
        for _ in range(_WARM_UP):
            start = _em_step(block, sums)
            sums = block.look(start, curved=False)
        apart = _apart(rows, start, sums.likelihood)
        self._result[fits[~apart]] = np.nan
        fits, start = fits[apart], start[:, apart]
        block.keep(np.flatnonzero(apart))
        self._keep(np.flatnonzero(self._open), block)
        self._fit = np.concatenate([self._fit, fits])
        self._at = np.concatenate([self._at, start], axis=1)
        self._fallback = np.concatenate([self._fallback, start], axis=1)
        self._reached = np.concatenate([self._reached, np.full(len(fits), -np.inf)])
        self._damping = np.concatenate([self._damping, np.full(len(fits), _DAMPING)])
        self._daring = np.concatenate([self._daring, np.zeros(len(fits), dtype=bool)])
        self._open = np.concatenate([self._open, np.ones(len(fits), dtype=bool)])
        self._age = np.concatenate([self._age, np.zeros(len(fits), dtype=np.intp)])

    def run(self, *, leave: int) -> None:
        """Climb until at most ``leave`` fits are on their way."""
        while (still := int(self._open.sum())) > leave:
            if still < _CROWD * len(self._open):
                self._keep(np.flatnonzero(self._open))
            self._advance()

    def _keep(self, rows: IndexArray, more: _Block | None = None) -> None:
        self._block.keep(rows, more)
        for name in ("_fit", "_at", "_fallback", "_reached", "_damping", "_daring", "_open", "_age"):
            setattr(self, name, getattr(self, name)[..., rows])

    def _advance(self) -> None:
        """One look at every fit, and the step that follows from it."""
        at, sums = self._at, self._block.look(self._at)
        after = _em_step(self._block, sums)
        # On the way a component may be lighter than it must be in the end.
        alive = _is_alive(after, 1 / np.maximum(self._block.n_F, 1))
        # A Newton step that lowers the likelihood or makes a component collapse is taken back.
        failed = self._daring & ~(alive & (sums.likelihood >= self._reached - _LIKELIHOOD_NOISE))
        step, concave = _newton_step(self._block, sums, at, self._damping)
        length = np.abs(step).max(axis=0)
        # A short Newton step says how far the top is; a short EM step may be one of thousands to come.
        still = np.abs(after - at).max(axis=0) <= _STILL
        settled = (still | (concave & (length <= TOLERANCE))) & (self._age > 0)
        self._age += 1
        done = (settled | ~alive) & ~failed | (self._age >= MAX_ITERATIONS)
        ended = np.flatnonzero(done & self._open)
        target = np.where(failed, self._fallback, after)
        self._reached = np.where(failed, self._reached, sums.likelihood)
        self._result[self._fit[ended]] = target[:, ended].T
        self._likelihood[self._fit[ended]] = self._reached[ended]
        self._open[ended] = False
        factor = np.where(failed, 4.0, np.where(self._daring, 0.25, 1.0))
        self._damping *= factor
        self._daring = np.isfinite(length) & ~failed
        self._at = np.where(self._daring, _apply(at, step), target)
        self._fallback = target


def _apart(row_F: IndexArray, at_5F: FloatArray, likelihood_F: FloatArray) -> NDArray[np.bool_]:
    """Which fits are not near a likelier one of their row."""
    ordered_5F = in_order(at_5F)
    order = np.lexsort((-likelihood_F, row_F))
    near = np.abs(np.diff(ordered_5F[:, order], axis=1)).max(axis=0) < _SAME
    apart_F = np.ones(len(row_F), dtype=bool)
    apart_F[order[1:]] = ~(near & (np.diff(row_F[order]) == 0))
    return apart_F


def _em_step(block: _Block, sums: _Sums) -> FloatArray:
    """M step; spreads are held above zero so that a collapsing row stays finite until it is dropped."""
    n, first, second = block.total_3F
    columns = []
    for m0, m1, m2 in (
        (sums.r0, sums.r1, sums.r2),
        (n - sums.r0, first - sums.r1, second - sums.r2),
    ):
        mass = np.maximum(m0, 1e-300)
        mean = m1 / mass
        columns.append((mean, np.sqrt(np.maximum(m2 / mass - mean**2, (MIN_SPREAD / 10) ** 2))))
    (mean_low, std_low), (mean_high, std_high) = columns
    return np.stack([mean_low, mean_high, std_low, std_high, sums.r0 / n])


def _newton_step(
    block: _Block, sums: _Sums, at_5F: FloatArray, damping_F: FloatArray
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Newton step on the log-likelihood in (means, log deviations, logit weight), and where it climbs.

    With a and b the gradients of the two weighted log-densities and r the responsibility, a value adds
    ``r a + (1 - r) b`` to the gradient and ``r A + (1 - r) B + r (1 - r) (a - b)(a - b)'`` to the Hessian.
    Each entry of ``a - b`` is a polynomial in x of degree 2 at most, so that the moments give the last term.
    ``damping_F`` times the diagonal of the complete data's information is added to minus the Hessian, which
    turns the step towards that of EM.
    """
    low, high, std_low, std_high, weight = at_5F
    n, first, second = block.total_3F
    r0, r1, r2 = sums.r0, sums.r1, sums.r2
    q0, q1, q2 = n - r0, first - r1, second - r2
    i_low, i_high = 1 / std_low, 1 / std_high
    z1_low, z1_high = (r1 - low * r0) * i_low, (q1 - high * q0) * i_high
    z2_low = (r2 - 2 * low * r1 + low**2 * r0) * i_low**2
    z2_high = (q2 - 2 * high * q1 + high**2 * q0) * i_high**2
    gradient = [z1_low * i_low, z1_high * i_high, z2_low - r0, z2_high - q0, r0 - weight * n]
    one, zero = np.ones_like(low), np.zeros_like(low)
    polynomials = [
        (-low * i_low**2, i_low**2, zero),
        (high * i_high**2, -(i_high**2), zero),
        ((low * i_low) ** 2 - 1, -2 * low * i_low**2, i_low**2),
        (1 - (high * i_high) ** 2, 2 * high * i_high**2, -(i_high**2)),
        (one, zero, zero),
    ]
    s = sums.shared
    minus = {}
    for i, (a0, a1, a2) in enumerate(polynomials):
        weighted = [a0 * s[k] + a1 * s[k + 1] + (a2 * s[k + 2] if i in (2, 3) else 0.0) for k in range(3)]
        for j in range(i, 5):
            b0, b1, b2 = polynomials[j]
            value = b0 * weighted[0]
            if j < 4:
                value = value + b1 * weighted[1]
            if j in (2, 3):
                value = value + b2 * weighted[2]
            minus[i, j] = -value
    information = [r0 * i_low**2, q0 * i_high**2, 2 * z2_low, 2 * z2_high, weight * (1 - weight) * n]
    minus[0, 2] = minus[0, 2] + 2 * z1_low * i_low
    minus[1, 3] = minus[1, 3] + 2 * z1_high * i_high
    for i in range(5):
        minus[i, i] = minus[i, i] + (1 + damping_F) * information[i]
    return _solve(minus, gradient, information)


def _solve(
    minus: dict[tuple[int, int], FloatArray], gradient: list[FloatArray], information: list[FloatArray]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Solve the (symmetric, 5 by 5) systems by Cholesky without roots; False where one is not positive."""
    concave = np.ones(len(gradient[0]), dtype=bool)
    factor: dict[tuple[int, int], FloatArray] = {}
    pivot: list[FloatArray] = []
    forward: list[FloatArray] = []
    for j in range(5):
        scaled = [factor[j, k] * pivot[k] for k in range(j)]
        d = minus[j, j] - sum((factor[j, k] * scaled[k] for k in range(j)), start=0.0)
        # A pivot that is not positive is flipped, or the step would go down along it.
        concave &= d > 0
        d = np.maximum(np.abs(d), 1e-4 * information[j])
        pivot.append(d)
        for i in range(j + 1, 5):
            rest = minus[j, i] - sum((factor[i, k] * scaled[k] for k in range(j)), start=0.0)
            factor[i, j] = rest / d
        forward.append(gradient[j] - sum((factor[j, k] * forward[k] for k in range(j)), start=0.0))
    step: list[FloatArray] = [np.empty(0)] * 5
    for j in reversed(range(5)):
        step[j] = forward[j] / pivot[j] - sum((factor[i, j] * step[i] for i in range(j + 1, 5)), start=0.0)
    step_5F = np.stack(step)
    longest_F = np.abs(step_5F).max(axis=0)
    return step_5F * (_LONGEST / np.maximum(longest_F, _LONGEST)), concave


def _apply(at_5F: FloatArray, step_5F: FloatArray) -> FloatArray:
    std = at_5F[2:4] * np.exp(step_5F[2:4])
    odds = at_5F[4] / (1 - at_5F[4]) * np.exp(step_5F[4])
    return np.concatenate([at_5F[:2] + step_5F[:2], np.maximum(std, MIN_SPREAD / 10), [odds / (1 + odds)]])
