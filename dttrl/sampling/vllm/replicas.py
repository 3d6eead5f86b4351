"""Several engines at once, each a Ray actor with GPUs of its own; Ray places them, on one machine or many.

Samples are handed out as engines have room: each time an engine reports, it is given its share of what is
left. Engines do not talk to each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dttrl.errors import DttrlError, MissingDependencyError, WorkError
from dttrl.sampling.vllm.failures import line_of
from dttrl.sampling.vllm.jobs import Done, EngineStart, Job
from dttrl.settings.sections import Sampling


class Replicas:
    """A fleet of ``replicas`` engines that Ray places, on the cluster at ``ray_address`` or on this machine.

    WorkError, naming the questions in flight, when an engine's process dies; what has been yielded is done.
    """

    def __init__(self, start: EngineStart, *, gpus: bool = True) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError("--replicas needs Ray: pip install 'ray[default]'") from error
        self._ray = ray
        chosen = start.vllm
        _connect(ray, chosen.ray_address)
        share = float(chosen.tensor_parallel) if gpus else 0.0
        _check_room(ray, chosen.replicas, share)
        # An engine of its own process under the actor would outlive a killed actor.
        one = replace(start, in_process=True) if start.in_process is None else start
        actor = ray.remote(EngineActor).options(num_gpus=share, num_cpus=1, max_restarts=0)
        self._actors = [actor.remote(one) for _ in range(chosen.replicas)]
        starting = [actor.capacity.remote() for actor in self._actors]
        self._capacity = [int(self._get(number, call, [])) for number, call in enumerate(starting)]

    def run(self, jobs: Sequence[Job], settings: Sampling) -> Iterator[list[Done]]:
        """See :class:`~dttrl.sampling.vllm.jobs.Fleet`."""
        waiting = deque(jobs)
        in_hand: list[dict[int, Job]] = [{} for _ in self._actors]
        calls: dict[Any, int] = {}
        try:
            for number in range(len(self._actors)):
                # Those that have been served have their share: what waits is for this one and the next.
                self._advance(number, waiting, in_hand, calls, settings, among=len(self._actors) - number)
            while calls:
                (ready, *_), _ = self._ray.wait(list(calls), num_returns=1)
                number = calls.pop(ready)
                done: list[Done] = self._get(number, ready, list(in_hand[number].values()))
                for each in done:
                    del in_hand[number][each.key]
                self._advance(number, waiting, in_hand, calls, settings, among=len(self._actors))
                yield done
        finally:
            if calls:
                for actor in self._actors:
                    actor.clear.remote()

    def close(self) -> None:
        """Stop the engines."""
        for actor in self._actors:
            self._ray.kill(actor)

    def _advance(
        self,
        number: int,
        waiting: deque[Job],
        in_hand: list[dict[int, Job]],
        calls: dict[Any, int],
        settings: Sampling,
        *,
        among: int,
    ) -> None:
        """Give an engine its share of what waits, as far as it has room, and let it go on."""
        room = self._capacity[number] - len(in_hand[number])
        more = [waiting.popleft() for _ in range(min(room, share_of(len(waiting), among)))]
        in_hand[number].update((job.key, job) for job in more)
        if in_hand[number]:
            calls[self._actors[number].advance.remote(more, settings)] = number

    def _get(self, number: int, call: Any, jobs: list[Job]) -> Any:
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DttrlError):
                raise error.cause from None
            raise WorkError(f"vLLM replica {number} failed: {line_of(error.cause)}") from error
        except self._ray.exceptions.RayError as error:
            raise WorkError(
                f"vLLM replica {number} died ({line_of(error)}); in flight: {questions(jobs)}"
            ) from error


class EngineActor:
    """An engine behind Ray; its methods are those of :class:`~dttrl.sampling.vllm.engine.VllmEngine`."""

    def __init__(self, start: EngineStart) -> None:
        self._start = start
        self._engine: Any = None

    def capacity(self) -> int:
        """Start the engine (here, so that its error reaches the caller as it is) and return its capacity."""
        if self._engine is None:
            from dttrl.sampling.vllm.engine import VllmEngine

            self._engine = VllmEngine(self._start)
        return int(self._engine.capacity)

    def advance(self, jobs: Sequence[Job], settings: Sampling) -> list[Done]:
        """Advance the engine."""
        return list(self._engine.advance(jobs, settings))

    def clear(self) -> None:
        """Forget every sample."""
        self._engine.clear()


def share_of(waiting: int, engines: int) -> int:
    """Return how many of the waiting samples one of the engines gets: no more than leaves all the same."""
    return math.ceil(waiting / engines)


def questions(jobs: Sequence[Job]) -> str:
    """Name the questions of these samples, the first few of them."""
    names = list(dict.fromkeys(job.stream.query for job in jobs))
    rest = len(names) - 5
    return ", ".join(names[:5]) + (f" and {rest} more" if rest > 0 else "") if names else "nothing"


def _connect(ray: Any, address: str | None) -> None:
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    except Exception as error:  # ConnectionError, ValueError or RuntimeError, by the kind of address
        raise WorkError(f"--ray-address {address}: Ray cannot be reached: {line_of(error)}") from error


def _check_room(ray: Any, replicas: int, share: float) -> None:
    have = float(ray.cluster_resources().get("GPU", 0.0))
    if replicas * share > have:
        raise WorkError(
            f"--replicas {replicas} with --tensor-parallel {share:g} needs {replicas * share:g} GPUs; "
            f"Ray sees {have:g}"
        )
