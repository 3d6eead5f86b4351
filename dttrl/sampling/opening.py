"""What samples for ``dttrl generate``: the configured backend, opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dttrl.data.questions import Question
from dttrl.errors import InputError
from dttrl.sampling.backends import auto_backend
from dttrl.sampling.base import OpenedBackend, Sampler, positions
from dttrl.sampling.prompts import prompt_encoder, prompt_metadata, transformers_metadata
from dttrl.settings.choices import Auto, OpenAI, Vllm
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.files import load_config

if TYPE_CHECKING:
    from dttrl.sampling.models import LoadedTokenizer

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
        if isinstance(backend, OpenAI):
            from dttrl.sampling.openai import open_openai

            return open_openai(config, backend, questions)
        return _transformers(config)
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
    from dttrl.sampling.models import load_model, placement
    from dttrl.sampling.transformers import TransformersSampler

    device, dtype = placement(config.model)
    loaded = load_model(config.model, device=device, dtype=dtype)
    sampler = TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids)
    return _opened(config, loaded, sampler, transformers_metadata(dtype), positions(loaded.config))


def _vllm(config: GenerateConfig, backend: Vllm, questions: Sequence[Question]) -> OpenedBackend:
    """Return the sampler whose engines start when they are needed.

    Without ``max_model_len`` vLLM makes room for what the questions need.
    """
    from dttrl.sampling.models import load_tokenizer
    from dttrl.sampling.vllm.engine import require_vllm
    from dttrl.sampling.vllm.jobs import EngineStart
    from dttrl.sampling.vllm.sampler import VllmSampler, open_fleet

    version, on_cpu = require_vllm()
    files = load_tokenizer(config.model)
    limit = positions(files.config)
    _check_vllm(config, backend, files.config, limit, on_cpu=on_cpu)
    dtype = ("float32" if on_cpu else "bfloat16") if config.model.dtype == "auto" else config.model.dtype
    context, needed = backend.max_model_len or limit, backend.max_model_len
    if needed is None:
        encode = prompt_encoder(config.questions, files)
        lengths = [len(encode(question)) + config.sampling.max_new_tokens for question in questions]
        needed = max((length for length in lengths if limit is None or length <= limit), default=limit)
    start = EngineStart(
        config.model.model_copy(update={"name": files.place, "revision": files.revision, "dtype": dtype}),
        backend.model_copy(update={"max_model_len": needed}),
        k=config.sampling.k,
        eos_ids=files.eos_ids,
    )
    sampler = VllmSampler(
        lambda: open_fleet(start, on_cpu=on_cpu), files.tokenizer, files.eos_ids, max_model_len=context
    )
    metadata = {
        "backend": "vllm",
        "backend_version": version,
        "dtype": dtype,
        "logprobs_mode": "raw_logprobs",
        "statistics": backend.statistics,
        "entropy": "full" if backend.statistics == "engine" else "topk",
    }
    return _opened(config, files, sampler, metadata, context)


def _check_vllm(
    config: GenerateConfig, backend: Vllm, files_config: object, limit: int | None, *, on_cpu: bool
) -> None:
    """Raise InputError for options that vLLM has no use for here; ``limit`` is the model's positions."""
    if config.model.device not in ("auto", "cpu" if on_cpu else "cuda"):
        here = "a CPU" if on_cpu else "the GPUs that CUDA_VISIBLE_DEVICES names"
        raise InputError(f"--device {config.model.device}: this vLLM runs on {here}; leave --device out")
    vocabulary = getattr(files_config, "vocab_size", None)
    if vocabulary is not None and config.sampling.k > vocabulary:
        raise InputError(
            f"--k {config.sampling.k}: the model has {vocabulary} tokens; use --k {vocabulary} or less"
        )
    if limit is not None and backend.max_model_len is not None and backend.max_model_len > limit:
        raise InputError(f"--max-model-len {backend.max_model_len}: the model has {limit} positions")
    if on_cpu and backend.tensor_parallel > 1:
        raise InputError("--tensor-parallel is for GPUs; this vLLM runs on a CPU")


def _opened(
    config: GenerateConfig,
    loaded: LoadedTokenizer,
    sampler: Sampler,
    metadata: Mapping[str, object],
    context: int | None,
) -> OpenedBackend:
    """Add what a model whose files are read here has to say, whatever runs it."""
    return OpenedBackend(
        sampler,
        prompt_encoder(config.questions, loaded),
        {**metadata, **prompt_metadata(config.questions, loaded.name, loaded.revision)},
        model_files(loaded.name) if loaded.source in ("folder", "gguf") else None,
        context,
    )


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
