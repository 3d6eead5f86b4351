"""The sampler that runs vLLM engines: questions in, their rollouts out as questions finish."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from dttrl.data.rollouts import Rollout
from dttrl.sampling.base import SampleRequest, check_request
from dttrl.sampling.text import StopStrings, TextDecoder, finished_rollout
from dttrl.sampling.vllm.jobs import Done, EngineStart, Fleet, Job, Stream
from dttrl.settings.sections import Sampling

if TYPE_CHECKING:
    from dttrl.sampling.vllm.engine import VllmEngine


class VllmSampler:
    """Samples with the fleet that ``open_fleet`` starts when samples are first asked for.

    ``max_model_len`` is how long a prompt with its completion may be. Sampled ids up to and with the end
    token are kept; ``text`` excludes special tokens and the stop string. Questions are begun in order, and
    memory is bounded by what the engines have in hand and the questions that it belongs to.
    """

    def __init__(
        self,
        open_fleet: Callable[[], Fleet],
        tokenizer: Any,
        eos_ids: Sequence[int],
        *,
        max_model_len: int | None = None,
    ) -> None:
        self._open_fleet = open_fleet
        self._fleet: Fleet | None = None
        self._eos_ids = frozenset(eos_ids)
        self._decoder = TextDecoder(tokenizer)
        self._max_model_len = max_model_len

    def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        """Yield the rollouts of each request as its question finishes; held ones take no part.

        InputError, before anything is started, for an empty prompt, a request without samples, and a prompt
        that leaves no room for ``max_new_tokens``.
        """
        wanted = [request for request in requests if not request.held]
        context, also = self._max_model_len, ", or pass --skip-long to leave such questions out"
        for request in wanted:
            check_request(request, settings, context, f"the context of {context}", also)
        return self._sample(wanted, settings)

    def _sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        stops = StopStrings(self._decoder, settings.stop) if settings.stop else None
        names = [(question, sample) for question, r in enumerate(requests) for sample in r.sample_ids]
        jobs = []
        for key, (question, sample) in enumerate(names):
            request = requests[question]
            stream = Stream(settings.seed, request.step or 0, request.query_id, f"sample:{sample}")
            jobs.append(Job(key, request.prompt_ids, stream))
        if self._fleet is None:
            self._fleet = self._open_fleet()
        gathered: dict[int, dict[int, Rollout]] = {}
        with contextlib.closing(self._fleet.run(jobs, settings)) as finished:  # type: ignore[type-var]
            for done in (each for some in finished for each in some):
                question, sample = names[done.key]
                request, rollouts = requests[question], gathered.setdefault(question, {})
                rollouts[sample] = self._rollout(request, sample, done, stops)
                if len(rollouts) == len(request.sample_ids):
                    del gathered[question]
                    yield [rollouts[each] for each in request.sample_ids]

    def _rollout(self, request: SampleRequest, sample: int, done: Done, stops: StopStrings | None) -> Rollout:
        unknown = bool(np.isnan(done.statistics[-1]).any())
        return finished_rollout(
            request.query_id,
            sample,
            done.token_ids,
            done.statistics[:-1] if unknown else done.statistics,
            done.finish_reason,
            decoder=self._decoder,
            eos_ids=self._eos_ids,
            stops=stops,
            step=request.step,
        )


def open_fleet(start: EngineStart, *, on_cpu: bool) -> Fleet:
    """Start the engines: one, or as many as are chosen, which Ray places."""
    if start.vllm.replicas > 1 or start.vllm.ray_address is not None:
        from dttrl.sampling.vllm.replicas import Replicas

        return Replicas(start, gpus=not on_cpu)
    from dttrl.sampling.vllm.engine import VllmEngine

    return OneEngine(VllmEngine(start))


class OneEngine:
    """A fleet of one engine in this process."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    def run(self, jobs: Sequence[Job], settings: Sampling) -> Iterator[list[Done]]:
        """See :class:`~dttrl.sampling.vllm.jobs.Fleet`."""
        queue, running = iter(jobs), 0
        try:
            while True:
                more = list(islice(queue, self._engine.capacity - running))
                running += len(more)
                if not running:
                    return
                done = self._engine.advance(more, settings)
                running -= len(done)
                yield done
        finally:
            if running:
                self._engine.clear()
