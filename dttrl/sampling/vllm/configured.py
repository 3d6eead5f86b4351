"""The configured vLLM backend: its sampler, and what its rollout files say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dttrl.errors import InputError
from dttrl.sampling.base import positions
from dttrl.sampling.vllm.failures import missing_vllm
from dttrl.sampling.vllm.jobs import EngineSettings, Fleet
from dttrl.sampling.vllm.sampler import OneEngine, VllmSampler
from dttrl.settings.choices import Vllm
from dttrl.settings.commands import GenerateConfig

if TYPE_CHECKING:
    from dttrl.sampling.models import TokenizerFiles


def configured_sampler(
    config: GenerateConfig, backend: Vllm, files: TokenizerFiles, prompt_lengths: Sequence[int]
) -> tuple[VllmSampler, dict[str, object], int | None]:
    """Return the sampler (its engines start when they are needed), metadata, and the context's length.

    ``prompt_lengths`` are those of the questions: without ``max_model_len`` vLLM makes room for what they
    need.
    InputError for options that vLLM has no use for, MissingDependencyError without vLLM.
    """
    version, on_cpu = require_vllm()
    _check(config, backend, files, on_cpu=on_cpu)
    dtype = ("float32" if on_cpu else "bfloat16") if config.model.dtype == "auto" else config.model.dtype
    limit = positions(files.config)
    context = backend.max_model_len or limit
    settings = EngineSettings(
        model=files.place,
        tokenizer=files.place,
        dtype=dtype,
        revision=files.revision,
        trust_remote_code=config.model.trust_remote_code,
        max_model_len=backend.max_model_len or _needed(prompt_lengths, config.sampling.max_new_tokens, limit),
        max_num_seqs=backend.max_num_seqs,
        gpu_memory_utilization=backend.gpu_memory_utilization,
        tensor_parallel=backend.tensor_parallel,
        enforce_eager=backend.enforce_eager,
        statistics=backend.statistics,
        k=config.sampling.k,
        eos_ids=files.eos_ids,
    )

    def open_fleet() -> Fleet:
        if backend.replicas > 1 or backend.ray_address is not None:
            from dttrl.sampling.vllm.replicas import Replicas

            return Replicas(settings, backend.replicas, ray_address=backend.ray_address, gpus=not on_cpu)
        from dttrl.sampling.vllm.engine import VllmEngine

        return OneEngine(VllmEngine(settings))

    metadata: dict[str, object] = {
        "backend": "vllm",
        "backend_version": version,
        "dtype": dtype,
        "logprobs_mode": "raw_logprobs",
        "statistics": backend.statistics,
        "entropy": "full" if backend.statistics == "engine" else "topk",
    }
    sampler = VllmSampler(open_fleet, files.tokenizer, files.eos_ids, max_model_len=context)
    return sampler, metadata, context


def require_vllm() -> tuple[str, bool]:
    """Return vLLM's version, and whether it runs on the CPU; MissingDependencyError without vLLM."""
    from dttrl.sampling.vllm.engine import quiet_environment

    quiet_environment()
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        raise missing_vllm(error) from error
    return str(vllm.__version__), bool(current_platform.is_cpu())


def _check(config: GenerateConfig, backend: Vllm, files: TokenizerFiles, *, on_cpu: bool) -> None:
    if config.model.device not in ("auto", "cpu" if on_cpu else "cuda"):
        here = "a CPU" if on_cpu else "the GPUs that CUDA_VISIBLE_DEVICES names"
        raise InputError(f"--device {config.model.device}: this vLLM runs on {here}; leave --device out")
    vocabulary = getattr(files.config, "vocab_size", None)
    if vocabulary is not None and config.sampling.k > vocabulary:
        raise InputError(
            f"--k {config.sampling.k}: the model has {vocabulary} tokens; use --k {vocabulary} or less"
        )
    limit = positions(files.config)
    if limit is not None and backend.max_model_len is not None and backend.max_model_len > limit:
        raise InputError(f"--max-model-len {backend.max_model_len}: the model has {limit} positions")
    if on_cpu and backend.tensor_parallel > 1:
        raise InputError("--tensor-parallel is for GPUs; this vLLM runs on a CPU")


def _needed(prompt_lengths: Sequence[int], max_new_tokens: int, limit: int | None) -> int | None:
    """Return the longest prompt with completion among those within the limit."""
    lengths = [length + max_new_tokens for length in prompt_lengths]
    return max((length for length in lengths if limit is None or length <= limit), default=limit)
