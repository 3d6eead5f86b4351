"""What passes between the sampler and an engine: samples to draw, samples drawn, what it is started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dttrl.data.rollouts import FinishReason
from dttrl.settings.choices import Vllm
from dttrl.settings.sections import Model, Sampling


@dataclass(frozen=True, slots=True)
class Stream:
    """Names the random numbers of a sample: the arguments of :func:`dttrl.rng.derive`."""

    seed: int
    step: int
    query: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Job:
    """One sample to draw; ``key`` is the sampler's name for it."""

    key: int
    prompt_ids: tuple[int, ...]
    stream: Stream


@dataclass(frozen=True, slots=True)
class Done:
    """A finished sample: ids (T,) up to and with the end token, statistics (4, T), why it ended.

    The rows of ``statistics`` are those of :func:`dttrl.kernels.token_statistics.token_statistics`; a row
    that the engine's mode does not know is NaN.
    """

    key: int
    token_ids: NDArray[np.int32]
    statistics: NDArray[np.float32]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class EngineStart:
    """What an engine is started with: settings in which nothing is left to dttrl, and what is no setting.

    The name of ``model`` is where its files and tokenizer are. ``k`` entries go into a token's confidence;
    ``eos_ids`` end a sample, and without any only its length does. ``in_process`` runs the engine in the
    caller's process instead of one of its own: less to start and nothing to be left behind, but its
    scheduling shares a thread with the handling of its results. ``extra`` are further arguments of vLLM's
    ``EngineArgs``.
    """

    model: Model
    vllm: Vllm
    k: int = 20
    eos_ids: tuple[int, ...] = ()
    in_process: bool | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


class Fleet(Protocol):
    """One engine or several, fed from one queue."""

    def run(self, jobs: Sequence[Job], settings: Sampling) -> Iterator[list[Done]]:
        """Draw the jobs, begun in order, and yield them as they finish; closing it forgets the others."""
        ...
