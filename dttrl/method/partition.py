"""Which rollouts are positive: the likelier component of the mixture claims each (eq:sample_assignment)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dttrl.method.mixture import Mixture, Mixtures

Centre = Literal["none", "question"]


def centred(confidence_BG: NDArray[np.float64], centre: Centre) -> NDArray[np.float64]:
    """Return confidences as they meet the mixture: as they are, or less the mean of their question.

    The mean is over the finite ones. A mixture of all questions then sees confidence and not difficulty (not
    in the paper).
    """
    if centre == "none":
        return confidence_BG
    finite_BG = np.isfinite(confidence_BG)
    total_B1 = np.where(finite_BG, confidence_BG, 0.0).sum(axis=1, keepdims=True)
    result: NDArray[np.float64] = confidence_BG - total_B1 / np.maximum(
        finite_BG.sum(axis=1, keepdims=True), 1
    )
    return result


def assign_positive(
    confidence_RN: NDArray[np.float64], mixture: Mixture | Mixtures, *, monotone: bool = False
) -> NDArray[np.bool_]:
    """Return bool (R, N): whether a confidence is likelier under the positive component.

    Component densities are compared without mixing weights, and a tie is negative, as the equation says.
    ``mixture`` is one for all rows or R of them. A NaN confidence is not positive; a degenerate mixture has
    no positives. With unequal spreads the wider component also claims the far side of the narrower one, so
    that a very low confidence can be positive; ``monotone`` rules that out: above the positive mean is
    positive, below the negative mean negative.
    """
    high, low = (
        _log_density(confidence_RN, mixture.mean_pos, mixture.std_pos),
        _log_density(confidence_RN, mixture.mean_neg, mixture.std_neg),
    )
    positive_RN: NDArray[np.bool_] = high > low
    if monotone:
        positive_RN = positive_RN | (confidence_RN >= _column(mixture.mean_pos))
        positive_RN = positive_RN & (confidence_RN > _column(mixture.mean_neg))
    usable_R1: NDArray[np.bool_] = _column(mixture.is_degenerate) == 0
    return positive_RN & np.isfinite(confidence_RN) & usable_R1


def _log_density(x_RN: NDArray[np.float64], mean: ArrayLike, std: ArrayLike) -> NDArray[np.float64]:
    """Log-density up to the constant that both components share, so that ties are exact."""
    std_R1 = np.maximum(_column(std), np.finfo(np.float64).tiny)
    with np.errstate(over="ignore", invalid="ignore"):
        density: NDArray[np.float64] = -np.log(std_R1) - 0.5 * ((x_RN - _column(mean)) / std_R1) ** 2
    return density


def _column(value: ArrayLike) -> NDArray[np.float64]:
    array: NDArray[np.float64] = np.asarray(value, dtype=np.float64)
    return array[..., None]
