"""What passes between the sampler and an engine: samples to draw, samples drawn, how the engine is set up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dttrl.data.rollouts import FinishReason
from dttrl.settings.sections import Sampling

StatisticsMode = Literal["engine", "logprobs", "none"]
"""Where a token's statistics come from: computed inside the engine, from its top-k log-probabilities, or
nowhere (the measure of what the others cost)."""


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
    that the engine's mode does not know is NaN. Without statistics its shape is (4, 0).
    """

    key: int
    token_ids: NDArray[np.int32]
    statistics: NDArray[np.float32]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How vLLM is set up; ``None`` leaves a choice to vLLM.

    ``in_process`` runs the engine in the caller's process instead of one of its own: less to start and
    nothing to be left behind, but its scheduling shares a thread with the handling of its results.
    ``extra`` are further arguments of vLLM's ``EngineArgs``.
    """

    model: str
    tokenizer: str
    dtype: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel: int = 1
    enforce_eager: bool = False
    in_process: bool | None = None
    statistics: StatisticsMode = "engine"
    k: int = 20
    eos_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)


class Engine(Protocol):
    """One engine: takes samples to draw and gives back finished ones."""

    @property
    def capacity(self) -> int:
        """Samples that it takes at a time: those it decodes together, and others that wait for a place."""
        ...

    def advance(self, jobs: Sequence[Job], settings: Sampling) -> list[Done]:
        """Take these samples too, go on for a moment, and return what has finished, perhaps nothing."""
        ...

    def clear(self) -> None:
        """Forget every sample that has not been returned."""
        ...


class Fleet(Protocol):
    """One engine or several, fed from one queue."""

    def run(self, jobs: Sequence[Job], settings: Sampling) -> Iterator[list[Done]]:
        """Draw the jobs, begun in order, and yield them as they finish; closing it forgets the others."""
        ...
