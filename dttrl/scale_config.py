"""What ``--engine openrlhf`` is told of machines and memory."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Engine = Literal["local", "openrlhf"]

_SCALE: dict[str, Any] = {"panel": "OpenRLHF"}


class ScaleFields(BaseModel):
    """Which engine trains, and what only the engine at scale reads."""

    engine: Engine = Field(
        "local",
        description="What samples and updates: local (in this process, one device) or openrlhf (Ray, vLLM "
        "and DeepSpeed on the GPUs of one or more machines).",
        json_schema_extra={"panel": "Run"},
    )
    gpus: int = Field(1, ge=1, description="GPUs of each machine.", json_schema_extra=_SCALE)
    nodes: int = Field(1, ge=1, description="Machines of the Ray cluster.", json_schema_extra=_SCALE)
    tensor_parallel: int = Field(
        1, ge=1, description="GPUs that one vLLM engine is spread over.", json_schema_extra=_SCALE
    )
    gpu_memory_utilization: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of a GPU's memory for vLLM while it samples; training takes its turn with it.",
        json_schema_extra=_SCALE,
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        2, description="ZeRO stage of DeepSpeed; 3 spreads the weights too.", json_schema_extra=_SCALE
    )
    micro_batch: int = Field(
        16, ge=1, description="Rollouts in one forward and backward pass of a GPU.", json_schema_extra=_SCALE
    )
    ray_address: str | None = Field(
        None,
        description="Ray cluster to train on (default: RAY_ADDRESS, else this machine).",
        json_schema_extra=_SCALE,
    )


SCALE_FIELDS = frozenset(ScaleFields.model_fields)
