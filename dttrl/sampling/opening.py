"""What samples for ``dttrl generate``: the configured backend, opened."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dttrl.data.questions import Question
from dttrl.errors import InputError
from dttrl.sampling.backends import auto_backend
from dttrl.sampling.base import OpenedBackend, positions
from dttrl.sampling.prompts import prompt_encoder, prompt_metadata, transformers_metadata
from dttrl.settings.choices import Auto, OpenAI, Vllm
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.files import load_config

_WEIGHTS = (".safetensors", ".bin", ".gguf")
_SETTINGS = (".json", ".jinja", ".model")  # configuration, chat template, tokenizer


def open_backend(config: GenerateConfig, questions: Sequence[Question]) -> OpenedBackend:
    """Open the configured backend; InputError where it, or its model, cannot be had.

    ``auto`` is decided here; the metadata then hold the reason as ``backend_reason``.
    """
    backend = config.backend
    if not isinstance(backend, Auto):
        if isinstance(backend, Vllm):
            return _vllm(config, backend, questions)
        return _openai(config, backend, questions) if isinstance(backend, OpenAI) else _transformers(config)
    name, reason = auto_backend(
        model=config.model.name, device=config.model.device, base_url=backend.base_url
    )
    try:
        decided = load_config(GenerateConfig, None, config.flat() | {"backend": name})
    except InputError as error:
        raise InputError(f"{error} (--backend auto took {name}: {reason})") from None
    opened = open_backend(decided, questions)
    return replace(
        opened,
        metadata={**opened.metadata, "backend_reason": reason},
        notes=(f"backend {name}: {reason}", *opened.notes),
    )


def _transformers(config: GenerateConfig) -> OpenedBackend:
    import torch

    from dttrl.sampling.models import load_model, resolve_device, resolve_dtype
    from dttrl.sampling.transformers import TransformersSampler

    if config.model.threads is not None:
        torch.set_num_threads(config.model.threads)
    device = resolve_device(config.model.device)
    dtype = resolve_dtype(config.model.dtype, device)
    loaded = load_model(
        config.model.name,
        device=device,
        dtype=dtype,
        revision=config.model.revision,
        trust_remote_code=config.model.trust_remote_code,
    )
    return OpenedBackend(
        TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids),
        prompt_encoder(config.questions, loaded),
        {**transformers_metadata(dtype), **prompt_metadata(config.questions, loaded)},
        model_files(loaded.name) if loaded.source in ("folder", "gguf") else None,
        positions(loaded.model.config),
    )


def _vllm(config: GenerateConfig, backend: Vllm, questions: Sequence[Question]) -> OpenedBackend:
    from dttrl.sampling.models import load_tokenizer
    from dttrl.sampling.vllm.configured import configured_sampler, require_vllm

    require_vllm()
    files = load_tokenizer(
        config.model.name, revision=config.model.revision, trust_remote_code=config.model.trust_remote_code
    )
    encode = prompt_encoder(config.questions, files)
    sampler, metadata, context = configured_sampler(
        config, backend, files, [len(encode(q)) for q in questions]
    )
    return OpenedBackend(
        sampler,
        encode,
        {**metadata, **prompt_metadata(config.questions, files)},
        model_files(files.name) if files.source in ("folder", "gguf") else None,
        context,
    )


def _openai(config: GenerateConfig, server: OpenAI, questions: Sequence[Question]) -> OpenedBackend:
    from dttrl.sampling.openai import open_openai

    return open_openai(config, server, questions)


def model_files(name: str) -> str | None:
    """Return a hash that tells a local model from the one that lay in its place before; None for a hub id.

    Weights enter with size and modification time, since reading them takes as long as loading them;
    configuration, chat template and tokenizer with their content.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS + _SETTINGS)
    elif path.is_file():
        files = [path]
    else:
        return None
    total = hashlib.sha256()
    for file in files:
        if file.suffix in _SETTINGS:
            state = hashlib.sha256(file.read_bytes()).hexdigest()
        else:
            status = file.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        total.update(f"{file.name}\0{state}\n".encode(errors="surrogateescape"))
    return total.hexdigest()[:16]
