r"""Trajectory confidence: one number per rollout from the statistics of its tokens (eq:traj_conf).

.. math:: C_{traj} = -\frac{1}{N_G k} \sum_{i \in G} \sum_{j=1}^{k} \log P_i(j)

A *token confidence* is minus the mean log-probability of the k most likely tokens, in nats: a peaked
distribution pushes the other k - 1 far down, so higher is surer. The *trajectory confidence* is the mean
over a region G of the rollout's tokens; the paper's region is the last step, which holds the answer.

Every measure here is oriented so that higher is surer. ``topk`` and ``perplexity`` are positive and may
weigh votes as they are; ``logprob`` and ``entropy`` are at most zero and ``self-certainty`` may be; see
:func:`positive_weights`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dttrl.data.rollouts import Rollout
from dttrl.data.served_logprobs import MISSING_LOGPROB
from dttrl.errors import InputError

Measure = Literal["topk", "logprob", "perplexity", "entropy", "self-certainty"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
MEASURED_COLUMNS: dict[Measure, str] = {
    "topk": "token_confidence",
    "logprob": "token_logprob",
    "perplexity": "token_logprob",
    "entropy": "token_entropy",
    "self-certainty": "token_self_certainty",
}
"""The token column that a measure is computed from."""

RegionKind = Literal["last-step", "all", "tail", "bottom", "lowest"]

_BLANK_LINE = re.compile(r"\n[ \t\r]*\n\s*")


@dataclass(frozen=True, slots=True)
class Region:
    """The token subset G of eq:traj_conf.

    ========================  ===========================================================================
    ``last-step``             from the last blank line before the final answer to the end (the paper's)
    ``all``                   every token
    ``tail:N``                the last N tokens (DeepConf, arXiv:2508.15260; its N is 2048)
    ``bottom:P:W``            mean of the lowest share P of the sliding windows of W tokens (DeepConf)
    ``lowest:W``              the lowest window of W tokens (DeepConf)
    ========================  ===========================================================================

    A rollout shorter than the window is one window. ``str(region)`` is what :meth:`parse` reads.

    >>> str(Region.parse("bottom:0.1:2048"))
    'bottom:0.1:2048'
    """

    kind: RegionKind
    window: int = 0
    share: float = 0.0

    @staticmethod
    def parse(text: str) -> Region:
        """Read a region from its name; raises :class:`InputError` with the list of valid forms."""
        name, *arguments = text.strip().split(":")
        try:
            if name in ("last-step", "all") and not arguments:
                return Region(name)  # type: ignore[arg-type]
            if name in ("tail", "lowest") and len(arguments) == 1 and int(arguments[0]) > 0:
                return Region(name, window=int(arguments[0]))  # type: ignore[arg-type]
            if name == "bottom" and len(arguments) == 2:
                share, window = float(arguments[0]), int(arguments[1])
                if 0 < share <= 1 and window > 0:
                    return Region("bottom", window=window, share=share)
        except ValueError:
            pass
        raise InputError(
            f"region {text!r} is not one of: last-step, all, tail:N, bottom:SHARE:WINDOW, lowest:WINDOW "
            "(for example tail:2048, bottom:0.1:2048)"
        )

    def __str__(self) -> str:
        """Return the form that :meth:`parse` reads."""
        if self.kind in ("last-step", "all"):
            return self.kind
        if self.kind == "bottom":
            share = repr(self.share).removesuffix(".0")
            return f"bottom:{share}:{self.window}"
        return f"{self.kind}:{self.window}"


LAST_STEP = Region("last-step")


def token_confidence(logprob_TK: ArrayLike, *, k: int) -> NDArray[np.float32]:
    """Return the confidence of each token from its largest log-probabilities, in nats.

    ``logprob_TK`` (float, T tokens by at least one entry, in any order) may hold one entry more than k, as
    vLLM adds the sampled token when it is not among the top k: only the k largest count, since an unlikely
    extra entry would make the token look surer. ``-inf``, NaN and -9999 are missing. Returns float32 (T,),
    NaN where a token has no entry. Raises :class:`InputError` when k is not positive.
    """
    top_TK = _largest(logprob_TK, k)
    known_TK = np.isfinite(top_TK)
    count_T = known_TK.sum(axis=1)
    total_T = np.where(known_TK, top_TK, 0.0).sum(axis=1)
    confidence_T = np.where(count_T > 0, -total_T / np.maximum(count_T, 1), np.nan)
    return confidence_T.astype(np.float32)


def token_entropy(logprob_TK: ArrayLike, *, k: int) -> NDArray[np.float32]:
    """Return the entropy of each token from its k largest log-probabilities, in nats.

    All tokens beyond the k are one more outcome, with the mass that the k leave. That is a lower bound of the
    entropy over the vocabulary (splitting an outcome only adds to it) and closer to it than the sum over the
    k alone, which lacks the outcome's own term; with the whole vocabulary in k it is exact. Input, result and
    errors as for :func:`token_confidence`.
    """
    top_TK = _largest(logprob_TK, k)
    known_TK = np.isfinite(top_TK)
    probability_TK = np.exp(top_TK)
    rest_T = np.clip(1.0 - probability_TK.sum(axis=1), 0.0, 1.0)
    rest_term_T = rest_T * np.log(np.where(rest_T > 0, rest_T, 1.0))
    entropy_T = -(probability_TK * np.where(known_TK, top_TK, 0.0)).sum(axis=1) - rest_term_T
    return np.where(known_TK.any(axis=1), entropy_T, np.nan).astype(np.float32)


def _largest(logprob_TK: ArrayLike, k: int) -> NDArray[np.float64]:
    """Return the k largest entries of each token, the largest first, -inf where one is missing."""
    if k < 1:
        raise InputError(f"k must be at least 1 to compute statistics of a token, got {k}")
    values_TK = np.asarray(logprob_TK, dtype=np.float64)
    values_TK = values_TK.reshape(0, 1) if not values_TK.size else np.atleast_2d(values_TK)
    present_TK = np.isfinite(values_TK) & (values_TK > MISSING_LOGPROB)
    ordered_TK: NDArray[np.float64] = -np.sort(-np.where(present_TK, values_TK, -np.inf), axis=1)[:, :k]
    return ordered_TK


def step_start(text: str, answer_start: int | None) -> int:
    r"""Return the character at which the step that holds the final answer begins.

    That is the end of the last blank line before ``answer_start`` (before the end of the text when no
    answer was found), or 0 for a text without one.

    >>> step_start("think\n\nso \\boxed{4}", 10)
    7
    """
    stripped = len(text.rstrip())
    end = stripped if answer_start is None else min(answer_start, stripped)
    start = 0
    for match in _BLANK_LINE.finditer(text, 0, max(end, 0)):
        start = match.end()
    return start


def region_values(
    values_T: NDArray[np.float64], offset_T: NDArray[np.int32], region: Region, *, start: int
) -> NDArray[np.float64]:
    """Return the token values that belong to ``region`` (1-D float64; for windows, the chosen means).

    ``start`` is the character of :func:`step_start`; only ``last-step`` reads it. A last step in which no
    token starts falls back to all tokens.
    """
    if region.kind == "last-step":
        inside = values_T[offset_T >= start]
        return inside if inside.size else values_T
    if region.kind == "all" or values_T.size <= region.window:
        return values_T
    if region.kind == "tail":
        return values_T[-region.window :]
    total = np.concatenate(([0.0], np.cumsum(values_T)))
    means = (total[region.window :] - total[: -region.window]) / region.window
    # 100 windows times 0.29 are 29 windows, not 28.999999999999996.
    keep = 1 if region.kind == "lowest" else max(1, int(means.size * region.share + 1e-9))
    return np.partition(means, keep - 1)[:keep]


def trajectory_confidence(
    rollout: Rollout, *, region: Region = LAST_STEP, measure: Measure = "topk", answer_start: int | None
) -> float:
    """Return the confidence of one rollout (eq:traj_conf); higher is surer, NaN when it has no token values.

    ``answer_start`` is the character at which the extracted answer begins (None: no answer). Tokens whose
    value is missing (not finite, or -9999) are left out of the mean. ``perplexity`` is the inverse
    perplexity, i.e. the geometric mean probability, in (0, 1].
    """
    if measure not in MEASURES:
        raise InputError(f"measure {measure!r} is not one of: {', '.join(MEASURES)}")
    values_T = getattr(rollout, MEASURED_COLUMNS[measure]).astype(np.float64)
    values_T = -values_T if measure == "entropy" else values_T
    offset_T = rollout.token_offset
    present_T = np.isfinite(values_T) & (np.abs(values_T) < -MISSING_LOGPROB)
    if offset_T.size != values_T.size:
        offset_T = np.zeros(values_T.size, dtype=np.int32)
    values_T, offset_T = values_T[present_T], offset_T[present_T]
    if not values_T.size:
        return float("nan")
    start = step_start(rollout.text, answer_start)
    if not ((offset_T >= start) & (offset_T < len(rollout.text))).any():
        start = 0  # the step lies inside one long token; the end token alone would say nothing of it
    chosen = region_values(values_T, offset_T, region, start=start)
    mean = float(chosen.mean())
    return float(np.exp(mean)) if measure == "perplexity" else mean


def positive_weights(confidence: NDArray[np.float64], measure: Measure | None) -> NDArray[np.float64]:
    """Turn confidences into vote weights: the log-scale measures through exp, the others as they are.

    A negative vote weight elects the rarest answer, so anything still negative is refused with
    :class:`InputError`; NaN (no confidence) stays NaN and does not vote.
    """
    weights = np.exp(confidence) if measure in ("logprob", "entropy") else np.asarray(confidence, np.float64)
    lowest = np.nanmin(weights, initial=0.0)
    if lowest < 0:
        raise InputError(
            f"vote weights must not be negative, but measure {measure!r} gave {lowest:.4g}: "
            "use measure topk or perplexity, or a vote without weights"
        )
    return weights
