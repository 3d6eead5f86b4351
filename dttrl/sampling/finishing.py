"""From what an engine drew to a rollout: text, character offsets and statistics."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from dttrl.rollouts import FinishReason, Rollout
from dttrl.sampling.text import StopStrings, TextDecoder

_NOTHING = np.empty(0, dtype=np.float32)


def finished_rollout(
    query_id: str,
    sample_id: int,
    token_ids: NDArray[np.int32],
    statistics_ST: NDArray[np.float32],
    finish_reason: FinishReason,
    *,
    decoder: TextDecoder,
    eos_ids: Collection[int],
    stops: StopStrings | None = None,
    step: int | None = None,
) -> Rollout:
    """Return the rollout of ``token_ids``, which reach up to and with the end token.

    Its text is without special tokens and without the stop string; the end token begins where the text ends.
    The statistics are confidence, log-probability, entropy and, where it is known, self-certainty: four rows
    or three.
    """
    ended = finish_reason == "stop" and len(token_ids) > 0 and int(token_ids[-1]) in eos_ids
    text, offsets = decoder.decode(token_ids[:-1] if ended else token_ids)
    if stops is not None:
        text = stops.cut(text)
    if ended:
        offsets = np.append(offsets, np.int32(len(text)))
    confidence, logprob, entropy, *known = statistics_ST
    return Rollout(
        query_id=query_id,
        sample_id=sample_id,
        text=text,
        finish_reason=finish_reason,
        token_ids=token_ids,
        token_offset=np.minimum(offsets, np.int32(len(text))),
        token_confidence=confidence,
        token_logprob=logprob,
        token_entropy=entropy,
        token_self_certainty=known[0] if known else _NOTHING,
        step=step,
    )
