"""What samples for ``dttrl generate``: the configured backend, opened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dttrl.config import GenerateConfig
from dttrl.errors import InputError
from dttrl.questions import Question
from dttrl.sampling.backends import auto_backend
from dttrl.sampling.configured import prompt_encoder, prompt_metadata, transformers_metadata
from dttrl.sampling.context import positions
from dttrl.sampling.fingerprint import model_files
from dttrl.sampling.opened import OpenedBackend


def open_backend(config: GenerateConfig, questions: Sequence[Question]) -> OpenedBackend:
    """Open the backend that ``config.backend`` names; InputError where it, or its model, cannot be had.

    ``auto`` is decided here; the metadata then hold the reason as ``backend_reason``.
    """
    if config.base_url is not None and config.backend not in ("auto", "openai"):
        raise InputError(f"--base-url names a server, and --backend is {config.backend}; use openai")
    if config.backend != "auto":
        return _OPENERS[config.backend](config, questions)
    name, reason = auto_backend(model=config.model, device=config.device, base_url=config.base_url)
    opened = _OPENERS[name](config, questions)
    return replace(
        opened,
        metadata={**opened.metadata, "backend_reason": reason},
        notes=(f"backend {name}: {reason}", *opened.notes),
    )


def _transformers(config: GenerateConfig, questions: Sequence[Question]) -> OpenedBackend:
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


def _openai(config: GenerateConfig, questions: Sequence[Question]) -> OpenedBackend:
    from dttrl.sampling.openai import open_openai

    return open_openai(config, questions)


_OPENERS: dict[str, Callable[[GenerateConfig, Sequence[Question]], OpenedBackend]] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "openai": _openai,
}
"""What ``config.backend`` may name besides auto."""
