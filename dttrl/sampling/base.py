"""What a sampler is asked for, and what a sampler is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from dttrl.rollouts import Rollout
from dttrl.settings.sections import Sampling


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Rollouts wanted of one question: its prompt as token ids, and the ids of the samples to draw.

    ``prompt_ids`` is empty where the sampler has the prompts itself, because a server has the tokenizer.

    A sample is determined by ``(seed, step, query_id, sample_id)`` and the prompt, so asking for some of a
    question's samples later gives what asking for all of them at once would have given, up to the rounding of
    the model's arithmetic, which differs between batches. To make that equal too, a finished request is given
    again as ``held``: it keeps its place in the batches of the others and yields nothing.
    """

    query_id: str
    prompt_ids: tuple[int, ...]
    sample_ids: tuple[int, ...]
    step: int | None = None
    held: bool = False


class Sampler(Protocol):
    """Anything that turns requests into rollouts."""

    def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        """Yield one list a request that is not ``held``, its rollouts in the order of ``sample_ids``.

        The lists come as questions finish, which need not be the order of the requests; nothing but the
        ``query_id`` of the rollouts says whose they are.
        """
        ...
