"""How rollouts are drawn: temperature, truncation, length, stop strings, k of the token confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dttrl.errors import InputError


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """What every sampler needs to know besides the prompts.

    ``temperature`` 0 takes the most likely token. ``top_k`` 0 and ``top_p`` 1 mean no truncation; with both,
    ``top_p`` is a share of what ``top_k`` left. ``k`` is the number of top entries in the token confidence
    (eq:token_conf, arXiv 2508.15260), which is taken before temperature and truncation. ``statistics=False``
    skips confidence, log-probability and entropy (their arrays are then empty). ``batch_size`` is the
    number of sequences decoded together; it changes speed and memory, not the samples. InputError for
    values out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 3072
    stop: tuple[str, ...] = ()
    k: int = 20
    seed: int = 0
    batch_size: int = 64
    statistics: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"--temperature must be 0 or more, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"--top-p must be above 0 and at most 1, not {self.top_p}")
        if self.top_k < 0:
            raise InputError(f"--top-k must be 0 (off) or more, not {self.top_k}")
        for flag, value in (
            ("--max-new-tokens", self.max_new_tokens),
            ("--k", self.k),
            ("--batch-size", self.batch_size),
        ):
            if value < 1:
                raise InputError(f"{flag} must be at least 1, not {value}")
        if any(not stop for stop in self.stop):
            raise InputError(
                "a stop string (--stop) is empty; an empty string would end every rollout at once"
            )
