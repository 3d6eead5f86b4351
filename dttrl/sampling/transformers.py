"""The sampler that runs a transformers model in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dttrl.data.rollouts import Rollout
from dttrl.errors import InputError
from dttrl.kernels.architecture import fusable
from dttrl.sampling.base import SampleRequest, check_request, positions
from dttrl.sampling.decoding import Batch, Finished, Row
from dttrl.sampling.forward import Forward
from dttrl.sampling.text import StopStrings, TextDecoder, finished_rollout
from dttrl.settings.sections import Sampling

if TYPE_CHECKING:
    from dttrl.kernels.decode_forward import FusedForward


class TransformersSampler:
    """Samples from ``model`` with token statistics; the model stays the caller's.

    Each sample draws its own random numbers, so that it does not depend on the batch it falls in, up to the
    rounding of the model's arithmetic. The model is put in evaluation mode while a batch is decoded and
    left as it was found; no gradients are recorded. With ``autocast_dtype`` the model runs under autocast
    (master weights in float32, arithmetic in bfloat16). Sampled ids up to and with the end token are kept;
    ``text`` excludes special tokens and the stop string. ``static`` says whether decoding steps keep their
    tensors in place, which on CUDA lets a graph replay them; by default on CUDA only. ``fused`` says whether
    kernels of our own decode, up to the rounding of bfloat16 the same samples and statistics; by default on
    CUDA, with Triton, in bfloat16, for the models they know (``dttrl.kernels``). InputError for
    ``fused=True`` where they cannot.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        eos_ids: Sequence[int],
        *,
        autocast_dtype: torch.dtype | None = None,
        static: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self._model, self._autocast_dtype = model, autocast_dtype
        self._eos_ids = tuple(eos_ids)
        self._decoder = TextDecoder(tokenizer)
        self._static = static if static is not None else model.device.type == "cuda"
        # Asked for plain or static steps, do those.
        wanted = fused if fused is not None else static is None and model.device.type == "cuda"
        architecture = fusable(model, autocast_dtype) if wanted else None
        self._fused: FusedForward | None = None
        if architecture is not None:
            from dttrl.kernels.decode_forward import FusedForward

            self._fused = FusedForward(architecture)
        elif fused:
            raise InputError(
                "fused decoding needs Triton, bfloat16, and an unmodified model of the Llama, Mistral, Qwen2 "
                "or Qwen3 family; leave it out"
            )

    def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        """Yield the rollouts of each request as its question finishes; batches of held ones are not decoded.

        InputError, before anything is decoded, for an empty prompt, a request without samples, and a prompt
        that leaves no room for ``max_new_tokens``.
        """
        _check(requests, settings, self._model.config)
        return self._sample(requests, settings)

    def _sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        stops = StopStrings(self._decoder, settings.stop) if settings.stop else None
        waiting: dict[int, list[Rollout]] = {}
        for rows in _batches(requests, settings.batch_size):
            if all(row.request.held for row in rows):
                continue
            if self._fused is not None:
                with torch.inference_mode():
                    self._fused.refresh()
            for row, finished in zip(rows, self._decode(rows, settings, stops), strict=True):
                if row.request.held:
                    continue
                rollouts = waiting.setdefault(row.question, [])
                rollouts.append(
                    finished_rollout(
                        row.request.query_id,
                        row.sample_id,
                        finished.token_ids,
                        finished.statistics,
                        finished.finish_reason,
                        decoder=self._decoder,
                        eos_ids=self._eos_ids,
                        stops=stops,
                        step=row.request.step,
                    )
                )
                if len(rollouts) == len(row.request.sample_ids):
                    yield waiting.pop(row.question)

    def _decode(self, rows: list[Row], settings: Sampling, stops: StopStrings | None) -> list[Finished]:
        forward = Forward(self._model, static=self._static and self._fused is None)
        # The contexts must not be open across a yield: the caller trains in between.
        with _evaluation_mode(self._model), torch.inference_mode(), self._autocast(forward.device):
            find = stops.find if stops else None
            # Triton launches on the current device, whatever device the tensors are on.
            with torch.cuda.device(forward.device if forward.device.type == "cuda" else -1):
                return Batch(forward, rows, settings, self._eos_ids, find).decode(self._fused)

    @contextlib.contextmanager
    def _autocast(self, device: torch.device) -> Iterator[None]:
        if self._autocast_dtype is None:
            yield
            return
        with torch.autocast(device.type, dtype=self._autocast_dtype):
            yield
        # Weights cast without gradients must not be found by a training step inside an outer autocast.
        torch.clear_autocast_cache()


def _batches(requests: Sequence[SampleRequest], batch_size: int) -> Iterator[list[Row]]:
    """Cut the samples of all requests into batches; questions of equal prompt length come together."""
    batch: list[Row] = []
    for question in sorted(range(len(requests)), key=lambda index: len(requests[index].prompt_ids)):
        for sample_id in requests[question].sample_ids:
            batch.append(Row(question, requests[question], sample_id))
            if len(batch) == batch_size:
                yield batch
                batch = []
    if batch:
        yield batch


@contextlib.contextmanager
def _evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """No dropout inside; afterwards every module is in the mode it was found in, also where they differed."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _check(requests: Sequence[SampleRequest], settings: Sampling, config: Any) -> None:
    context = positions(config)
    vocabulary = getattr(config.get_text_config(), "vocab_size", None)
    for request in requests:
        check_request(request, settings, context, f"the model's {context} positions")
        if (
            vocabulary is not None
            and not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocabulary
        ):
            raise InputError(
                f"question {request.query_id!r}: token id {max(request.prompt_ids)} is outside the model's "
                f"vocabulary of {vocabulary}; the tokenizer does not belong to this model"
            )
