"""What ``--backend vllm`` is told of its engines."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

StatisticsSource = Literal["engine", "logprobs"]

_VLLM: dict[str, Any] = {"panel": "vLLM"}


class VllmFields(BaseModel):
    """Fields that only the vLLM backend reads."""

    statistics: StatisticsSource = Field(
        "engine",
        description="Where vLLM's token statistics come from: engine (computed on the device, exact) or "
        "logprobs (from its k log-probabilities: several times slower, entropy of the k alone).",
        json_schema_extra=_VLLM,
    )
    max_num_seqs: int | None = Field(
        None,
        ge=1,
        description="Sequences that a vLLM engine decodes together (default: vLLM's choice; it does not read "
        "--batch-size).",
        json_schema_extra=_VLLM,
    )
    max_model_len: int | None = Field(
        None,
        ge=1,
        description="Longest prompt with completion that vLLM makes room for (default: what the questions "
        "need).",
        json_schema_extra=_VLLM,
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the GPU's memory that vLLM takes (default: vLLM's choice).",
        json_schema_extra=_VLLM,
    )
    tensor_parallel: int = Field(
        1, ge=1, description="GPUs that one vLLM engine is spread over.", json_schema_extra=_VLLM
    )
    replicas: int = Field(
        1,
        ge=1,
        description="vLLM engines that share the work, each with GPUs of its own, placed by Ray.",
        json_schema_extra=_VLLM,
    )
    ray_address: str | None = Field(
        None,
        description="Ray cluster that places the engines (default with --replicas: this machine).",
        json_schema_extra=_VLLM,
    )
    enforce_eager: bool = Field(
        False,
        description="Start vLLM without compilation and CUDA graphs: quicker to start, slower to decode.",
        json_schema_extra=_VLLM,
    )
