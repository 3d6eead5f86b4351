"""Statistics from the log-probabilities that an engine returns: k of them and the sampled token's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dttrl.sampling.statistics import STATISTICS


def flat_statistics(logprobs: Any, tokens: int) -> NDArray[np.float32]:
    """Return statistics (4, T) from vLLM's ``FlatLogprobs``.

    The first entry of a position is the sampled token, the k largest follow.
    Confidence is minus the mean of the k entries (-inf is missing, as
    :func:`~dttrl.sampling.statistics.token_statistics` has it), the entropy that of the k entries alone, a
    lower bound of the true one; self-certainty needs the whole vocabulary and is NaN.
    """
    value_TK = np.array(logprobs.logprobs, dtype=np.float32).reshape(tokens, -1)
    return row_statistics(value_TK[:, 0], value_TK[:, 1:])


def row_statistics(chosen_T: NDArray[np.float32], top_TK: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return statistics (4, T) from the sampled tokens' log-probabilities and the k largest."""
    result = np.full((STATISTICS, len(chosen_T)), np.nan, dtype=np.float32)
    finite_TK = np.isfinite(top_TK) & (top_TK > -9999.0)
    known_TK = np.where(finite_TK, top_TK, 0.0)
    with np.errstate(invalid="ignore"):
        result[0] = -known_TK.sum(-1) / finite_TK.sum(-1)
    result[1] = chosen_T
    result[2] = -(np.exp(known_TK) * known_TK).sum(-1)
    return result
