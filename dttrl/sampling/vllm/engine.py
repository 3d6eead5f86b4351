"""One vLLM engine: samples in, finished samples with their statistics out.

Requests are added and the engine is stepped by hand rather than through one large ``generate`` call, so that
a sample is handed over as soon as it has finished and only as many are known to the engine as it needs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dttrl.errors import InputError, WorkError
from dttrl.kernels.token_statistics import STATISTICS
from dttrl.method.confidence import token_confidence, token_entropy
from dttrl.rng import derive_seed
from dttrl.sampling.vllm.extension import STREAM
from dttrl.sampling.vllm.failures import line_of, missing_hook, missing_vllm, start_failure
from dttrl.sampling.vllm.jobs import Done, EngineStart, Job
from dttrl.sampling.vllm.recorder import tokens_of
from dttrl.settings.sections import Sampling

HAND_OVER_SECONDS = 1.0
"""Finished samples are fetched this often: each time the engine waits for its device."""

_EXTENSION = "dttrl.sampling.vllm.extension.StatisticsExtension"


class VllmEngine:
    """A running vLLM engine; opening it takes from ten seconds to minutes."""

    def __init__(self, start: EngineStart) -> None:
        self._start = start
        self._engine = _open(start)
        self._jobs: dict[str, tuple[int, str]] = {}
        self._ended: list[tuple[int, str, NDArray[np.int32], str, Any]] = []
        self._rpc("dttrl_follow", os.getpid())
        if start.vllm.statistics == "engine":
            self._install()

    @property
    def capacity(self) -> int:
        """Samples that it takes at a time: those it decodes together, and as many that wait for a place."""
        return 2 * int(self._engine.vllm_config.scheduler_config.max_num_seqs)

    def advance(self, jobs: Sequence[Job], settings: Sampling) -> list[Done]:
        """Add the jobs, step until finished samples are due or none is left, and return what has finished.

        InputError for what vLLM refuses, such as a prompt longer than its context; WorkError if it failed.
        """
        self._add(jobs, settings)
        self._step()
        done = [self._done(*ended) for ended in zip(self._ended, self._statistics(), strict=True)]
        self._ended = []
        return done

    def _install(self) -> None:
        for missing in self._rpc("dttrl_install", self._start.k):
            if missing is not None:
                import vllm

                raise missing_hook(missing, vllm.__version__)

    def _add(self, jobs: Sequence[Job], settings: Sampling) -> None:
        for job in jobs:
            name = str(job.key)
            try:
                inner = self._engine.add_request(
                    name, {"prompt_token_ids": list(job.prompt_ids)}, self._parameters(job, settings)
                )
            except ValueError as error:
                raise InputError(
                    f"question {job.stream.query!r}: vLLM refuses it: {line_of(error)}"
                ) from error
            # The worker knows a request by the name that vLLM made unique.
            self._jobs[name] = (job.key, inner if isinstance(inner, str) else name)

    def _step(self) -> None:
        deadline = time.monotonic() + HAND_OVER_SECONDS
        while self._jobs:
            try:
                outputs = self._engine.step()
            except Exception as error:  # an engine that died says so in several ways
                raise WorkError(f"vLLM's engine failed: {line_of(error)}") from error
            for output in outputs:
                if output.finished:
                    self._end(output)
            if time.monotonic() > deadline:
                break

    def clear(self) -> None:
        """Forget every sample that has not been returned."""
        if self._jobs:
            self._engine.abort_request(list(self._jobs))
        self._jobs, self._ended = {}, []
        if self._start.vllm.statistics == "engine":
            self._rpc("dttrl_clear")

    def close(self) -> None:
        """Stop the engine and give its memory back."""
        with contextlib.suppress(Exception):
            self._engine.engine_core.shutdown()

    def _end(self, output: Any) -> None:
        key, inner = self._jobs.pop(output.request_id)
        completion = output.outputs[0]
        ids = np.array(completion.token_ids, dtype=np.int32)
        self._ended.append((key, inner, ids, str(completion.finish_reason), completion.logprobs))

    def _statistics(self) -> Iterator[NDArray[np.float32]]:
        """Yield the statistics (4, T) of the samples that have ended, in their order."""
        if not self._ended:
            return
        if self._start.vllm.statistics == "engine":
            yield from self._taken()
            return
        for _, _, ids, _, logprobs in self._ended:
            yield flat_statistics(logprobs, len(ids))

    def _taken(self) -> Iterator[NDArray[np.float32]]:
        (counts, data), *_ = [
            found for found in self._rpc("dttrl_take", [inner for _, inner, *_ in self._ended]) if found
        ]
        table_N5 = np.frombuffer(data, dtype=np.float32).reshape(-1, STATISTICS + 1)
        start = 0
        for (key, _, ids, _, _), count in zip(self._ended, counts, strict=True):
            # An engine that schedules ahead may have drawn tokens after the last one.
            table_T5 = table_N5[start : start + count][: len(ids)]
            start += count
            if not np.array_equal(tokens_of(table_T5), ids):
                raise WorkError(
                    f"the statistics that vLLM kept of sample {key} are not of its tokens; this is an error "
                    "of dttrl with this version of vLLM: use --statistics logprobs, and please report it"
                )
            yield table_T5[:, :STATISTICS].T.copy()

    def _done(
        self, ended: tuple[int, str, NDArray[np.int32], str, Any], statistics: NDArray[np.float32]
    ) -> Done:
        key, _, ids, reason, _ = ended
        if reason not in ("stop", "length"):
            raise WorkError(f"vLLM ended a sample with {reason!r}; its own messages say why")
        return Done(key, ids, statistics, "stop" if reason == "stop" else "length")

    def _parameters(self, job: Job, settings: Sampling) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        stream = job.stream
        if self._start.vllm.statistics == "engine":
            names = [stream.seed, stream.step, stream.query, stream.purpose]
            options: dict[str, Any] = {"extra_args": {STREAM: names}}
        else:
            seed = derive_seed(stream.seed, step=stream.step, query=stream.query, purpose=stream.purpose)
            options = {"logprobs": settings.k, "flat_logprobs": True, "seed": seed}
        return SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k or -1,
            max_tokens=settings.max_new_tokens,
            stop=list(settings.stop) or None,
            stop_token_ids=list(self._start.eos_ids),
            ignore_eos=not self._start.eos_ids,
            detokenize=bool(settings.stop),
            skip_special_tokens=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **options,
        )

    def _rpc(self, method: str, *args: Any) -> list[Any]:
        return list(self._engine.collective_rpc(method, args=args))


def flat_statistics(logprobs: Any, tokens: int) -> NDArray[np.float32]:
    """Return statistics (4, T) from vLLM's ``FlatLogprobs``: confidence, log-probability, entropy, NaN.

    The first entry of a position is the sampled token, the k largest follow. The entropy is
    :func:`~dttrl.method.confidence.token_entropy`; self-certainty needs the whole vocabulary and is NaN.
    """
    value_TK = np.array(logprobs.logprobs, dtype=np.float32).reshape(tokens, -1)
    return row_statistics(value_TK[:, 0], value_TK[:, 1:])


def row_statistics(chosen_T: NDArray[np.float32], top_TK: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return statistics (4, T) from the sampled tokens' log-probabilities and the k largest."""
    k = top_TK.shape[1]
    unknown_T = np.full(len(chosen_T), np.nan, np.float32)
    return np.stack([token_confidence(top_TK, k=k), chosen_T, token_entropy(top_TK, k=k), unknown_T])


def require_vllm() -> tuple[str, bool]:
    """Return vLLM's version, and whether it runs on the CPU; MissingDependencyError without vLLM."""
    # What vLLM reads from the environment when it is imported, where the user has not set it.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        raise missing_vllm(error) from error
    return str(vllm.__version__), bool(current_platform.is_cpu())


def _open(start: EngineStart) -> Any:
    """Start vLLM; DttrlError in one line if it does not."""
    _, on_cpu = require_vllm()
    try:
        from vllm import EngineArgs, LLMEngine
        from vllm.usage.usage_lib import UsageContext
    except ImportError as error:
        raise missing_vllm(error) from error
    _environment(start, on_cpu=on_cpu)
    model, chosen = start.model, start.vllm
    options: dict[str, Any] = {
        "model": model.name,
        "tokenizer": model.name,
        "dtype": model.dtype,
        "revision": model.revision,
        "tokenizer_revision": model.revision,
        "trust_remote_code": model.trust_remote_code,
        "max_model_len": chosen.max_model_len,
        "max_num_seqs": chosen.max_num_seqs,
        "gpu_memory_utilization": chosen.gpu_memory_utilization,
        "tensor_parallel_size": chosen.tensor_parallel,
        "distributed_executor_backend": "mp" if chosen.tensor_parallel > 1 else None,
        "enforce_eager": chosen.enforce_eager,
        # Raw log-probabilities; and as many as asked for, where they are asked for.
        "logprobs_mode": "raw_logprobs",
        "max_logprobs": max(start.k, 20),
        "generation_config": "vllm",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": _EXTENSION,
        **start.extra,
    }
    try:
        arguments = EngineArgs(**{name: value for name, value in options.items() if value is not None})
        return LLMEngine.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS)
    except Exception as error:  # vLLM raises whatever its parts raise
        raise start_failure(start, error) from error


def _environment(start: EngineStart, *, on_cpu: bool) -> None:
    """Set what vLLM reads from the environment when an engine starts, where the user has not set it."""
    # A process in which anything has touched CUDA cannot be forked.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if start.vllm.statistics == "engine":
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        # The draw is ours; this one would only be compiled, or missed where it is not installed.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if start.in_process is not None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if start.in_process else "1"
    elif on_cpu:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        # Binding threads to cores fails in containers; and a spinning thread too many is very slow.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB; its own choice is most of the memory
