"""What samples for ``dttrl generate``: the configured backend, opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dttrl.config import GenerateConfig
from dttrl.questions import Question
from dttrl.sampling.base import Sampler
from dttrl.sampling.configured import prompt_encoder, prompt_metadata, transformers_metadata
from dttrl.sampling.context import positions
from dttrl.sampling.fingerprint import model_files


@dataclass(frozen=True, slots=True)
class OpenedBackend:
    """A sampler with what its requests are made of and what its files must say of it."""

    sampler: Sampler
    encode: Callable[[Question], Sequence[int]]
    """From a question to the token ids of its prompt."""
    metadata: Mapping[str, object]
    """The backend's and the model's part of the rollout file's metadata."""
    files: str | None = None
    """Identifies the files of a local model."""
    context: int | None = None
    """Tokens that a prompt and its completion may have together; None where that is not known."""


def open_backend(config: GenerateConfig, questions: Sequence[Question]) -> OpenedBackend:
    """Open the backend that ``config.backend`` names; InputError where it, or its model, cannot be had."""
    if config.backend == "vllm":
        return _vllm(config, questions)
    return _transformers(config)


def _transformers(config: GenerateConfig) -> OpenedBackend:
    import torch

    from dttrl.sampling.models import load_model, resolve_device, resolve_dtype
    from dttrl.sampling.transformers import TransformersSampler

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    loaded = load_model(
        config.model,
        device=device,
        dtype=dtype,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )
    return OpenedBackend(
        TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids),
        prompt_encoder(config, loaded),
        {**transformers_metadata(dtype), **prompt_metadata(config, loaded)},
        model_files(loaded.name) if loaded.source in ("folder", "gguf") else None,
        positions(loaded.model.config),
    )


def _vllm(config: GenerateConfig, questions: Sequence[Question]) -> OpenedBackend:
    from dttrl.sampling.models import load_tokenizer
    from dttrl.sampling.vllm_engine.configured import configured_sampler, require_vllm

    require_vllm()
    files = load_tokenizer(config.model, revision=config.revision, trust_remote_code=config.trust_remote_code)
    encode = prompt_encoder(config, files)
    sampler, metadata, context = configured_sampler(config, files, [len(encode(q)) for q in questions])
    return OpenedBackend(
        sampler,
        encode,
        {**metadata, **prompt_metadata(config, files)},
        model_files(files.name) if files.source in ("folder", "gguf") else None,
        context,
    )
