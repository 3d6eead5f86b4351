"""What runs inside vLLM's worker: token statistics from the raw logits, and the draw of the next token.

vLLM mixes this class into its worker (``worker_extension_cls``) and calls its methods there by name
(``collective_rpc``). The hooks sit where the model runner hands the logits to its sampler, which is outside
the CUDA graphs and after the pieces of a prompt have been told from sampled tokens. They were written for
vLLM 0.22 to 0.29 (its first model runner, ``VLLM_USE_V2_MODEL_RUNNER=0``); another version is refused only
if it lacks what is used.

Why the draw is replaced: with a seed a request, vLLM fills each row's noise from a generator of its own, one
kernel a row and step. Here a row's uniform number comes from its stream and one pass over the batch chooses
all tokens.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dttrl.kernels.token_statistics import draw
from dttrl.sampling.vllm.recorder import Recorder
from dttrl.sampling.vllm.uniforms import Uniforms

STREAM = "dttrl_stream"
"""Key of a request's stream in ``SamplingParams.extra_args``."""


class StatisticsExtension:
    """The methods that dttrl calls in vLLM's workers; their names must not be vLLM's."""

    def dttrl_follow(self, driver: int) -> None:
        """End with the process that opened the engine, so that a killed command leaves no engine behind."""
        parent = os.getppid()
        # Linux only; elsewhere vLLM's own way of noticing has to do.
        if os.getpid() != driver and hasattr(os, "pidfd_open"):
            end = [os.getpid()] if parent == driver else [parent, os.getpid()]
            watch = threading.Thread(target=_end_with, args=(os.pidfd_open(driver), end), daemon=True)
            watch.start()

    def dttrl_install(self, k: int) -> str | None:
        """Install the hooks with ``k`` entries in the confidence; returns what is missing, if anything."""
        runner = self.model_runner  # type: ignore[attr-defined]
        missing = missing_parts(runner)
        if missing is not None:
            return missing
        # All ranks see the same logits and must draw the same tokens; one of them keeps the statistics.
        self._dttrl = Hooks(runner, k, keeps=self.rank == 0)  # type: ignore[attr-defined]
        return None

    def dttrl_remove(self) -> None:
        """Remove the hooks."""
        self._dttrl.remove()

    def dttrl_take(self, ids: list[str]) -> tuple[list[int], bytes] | None:
        """Return the number of rows of each request, and all rows one after another as bytes."""
        if not self._dttrl.keeps:
            return None
        tables = self._dttrl.recorder.take(ids)
        return [len(table) for table in tables], b"".join(table.tobytes() for table in tables)

    def dttrl_clear(self) -> None:
        """Forget all requests."""
        self._dttrl.recorder.clear()


def _end_with(driver: int, processes: list[int]) -> None:
    """Wait until the process of this descriptor has ended, and end these."""
    select.select([driver], [], [])
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class Hooks:
    """The two hooks in a model runner: around ``_sample``, and in place of the sampler's random draw."""

    def __init__(self, runner: Any, k: int, *, keeps: bool) -> None:
        self._runner, self.keeps = runner, keeps
        self.recorder = Recorder(k)
        self._uniforms = Uniforms()
        self._uniform_R: torch.Tensor | None = None
        # Of the last step: its requests, and where their uniform numbers are.
        self._ids: list[str] = []
        self._streams: NDArray[np.int64] | None = None
        self._sample = runner._sample
        draw = runner.sampler.topk_topp_sampler
        self._draw, self._truncate = draw.forward, _truncation()
        runner._sample = self.sample
        draw.forward = self.draw

    def remove(self) -> None:
        """Put back what was there."""
        self._runner._sample = self._sample
        self._runner.sampler.topk_topp_sampler.forward = self._draw

    def sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        """Do what ``_sample`` does, and keep the statistics of the tokens that it sampled."""
        if logits is None or spec_decode_metadata is not None:
            return self._sample(logits, spec_decode_metadata)
        batch = self._runner.input_batch
        rows = batch.num_reqs
        ids: list[str] = batch.req_ids[:rows]
        if ids == self._ids:
            ids = self._ids
        else:
            self._ids, self._streams = ids, None
        place_R = batch.num_tokens_no_spec[:rows] - batch.num_prompt_tokens[:rows]
        self._uniform_R = self._row_uniforms(batch, ids, place_R, logits.device)
        # vLLM's sampler works in place on logits that are float32 already.
        copied = logits.clone() if self.keeps and logits.dtype == torch.float32 else logits
        output = self._sample(copied, spec_decode_metadata)
        self._uniform_R = None
        if self.keeps:
            keep_R = ~self._runner.discard_request_mask.np[:rows]
            self.recorder.record(logits[:rows], output.sampled_token_ids[:rows, 0], ids, place_R, keep_R)
        return output

    def draw(
        self, logits: torch.Tensor, generators: Any, k: torch.Tensor | None, p: torch.Tensor | None
    ) -> Any:
        """Choose a token a row by its uniform number, from logits to which temperature has been applied."""
        if self._uniform_R is None:
            return self._draw(logits, generators, k, p)
        return draw(self._truncate(logits, k, p), self._uniform_R), None

    def _row_uniforms(
        self, batch: Any, ids: list[str], place_R: NDArray[np.int32], device: torch.device
    ) -> torch.Tensor | None:
        """Return the number of every row on the device; None where all rows are greedy or bring no stream."""
        if batch.sampling_metadata.all_greedy:
            return None
        if self._streams is None:
            for name in ids:
                if not self._uniforms.knows(name):
                    extra = self._runner.requests[name].sampling_params.extra_args or {}
                    if STREAM not in extra:
                        return None
                    self._uniforms.add(name, extra[STREAM])
            self._uniforms.keep(ids)
            self._streams = self._uniforms.slots(ids)
        number_R = torch.from_numpy(self._uniforms.at(ids, self._streams, np.maximum(place_R, 0)))
        if device.type == "cuda":
            number_R = number_R.pin_memory()
        return number_R.to(device, non_blocking=True)


def missing_parts(runner: Any) -> str | None:
    """Return the name of the first thing that the hooks use and ``runner`` has not, or None."""
    for path in (
        "_sample",
        "requests",
        "input_batch.req_ids",
        "input_batch.num_reqs",
        "input_batch.num_tokens_no_spec",
        "input_batch.num_prompt_tokens",
        "input_batch.sampling_metadata",
        "discard_request_mask.np",
        "sampler.topk_topp_sampler.forward",
    ):
        value = runner
        for name in path.split("."):
            value = getattr(value, name, None)
            if value is None:
                return f"model_runner.{path}"
    try:
        _truncation()
    except ImportError:
        return "vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p"
    return None


def _truncation() -> Callable[..., torch.Tensor]:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    return apply_top_k_top_p
