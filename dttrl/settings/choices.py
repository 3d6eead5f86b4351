"""Where a model runs: the backends of ``generate`` and the engines of ``train``, each with its own settings.

Each is a class, and one field tells the classes of a union apart. A setting that only another choice has, or
that the chosen one does not read, is refused when it is given (:mod:`dttrl.settings.commands`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dttrl.section import Section, in_panel

StatisticsSource = Literal["engine", "logprobs"]

_BACKEND = in_panel("Sampling")
_ENGINE = in_panel("Run")
_SAMPLES = "What samples the rollouts."
_TRAINS = (
    "What samples and updates: local (in this process, one device) or openrlhf (Ray, vLLM and DeepSpeed on "
    "the GPUs of one or more machines)."
)
_TENSOR_PARALLEL = "GPUs that one vLLM engine is spread over."


class Transformers(Section):
    """transformers in this process, on one device."""

    panel: ClassVar[str] = "Sampling"

    backend: Literal["transformers"] = Field("transformers", description=_SAMPLES, json_schema_extra=_BACKEND)


class Vllm(Section):
    """vLLM engines; ``None`` leaves a choice to vLLM."""

    panel: ClassVar[str] = "vLLM"

    backend: Literal["vllm"] = Field("vllm", description=_SAMPLES, json_schema_extra=_BACKEND)
    statistics: StatisticsSource = Field(
        "engine",
        description="Where vLLM's token statistics come from: engine (computed on the device, exact) or "
        "logprobs (from its k log-probabilities: several times slower, entropy of the k alone).",
    )
    max_num_seqs: int | None = Field(
        None,
        ge=1,
        description="Sequences that a vLLM engine decodes together (default: vLLM's choice; it does not read "
        "--batch-size).",
    )
    max_model_len: int | None = Field(
        None,
        ge=1,
        description="Longest prompt with completion that vLLM makes room for (default: what the questions "
        "need).",
    )
    gpu_memory_utilization: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the GPU's memory that vLLM takes (default: vLLM's choice).",
    )
    tensor_parallel: int = Field(1, ge=1, description=_TENSOR_PARALLEL)
    replicas: int = Field(
        1,
        ge=1,
        description="vLLM engines that share the work, each with GPUs of its own, placed by Ray.",
    )
    ray_address: str | None = Field(
        None,
        description="Ray cluster that places the engines (default with --replicas: this machine).",
    )
    enforce_eager: bool = Field(
        False,
        description="Start vLLM without compilation and CUDA graphs: quicker to start, slower to decode.",
    )

    def unread(self) -> Mapping[str, Collection[str]]:
        """Return what vLLM has no use for."""
        return {"--backend vllm": ("threads", "batch_size")}


class OpenAI(Section):
    """An OpenAI-compatible server, and how it is asked."""

    panel: ClassVar[str] = "Server"

    backend: Literal["openai"] = Field("openai", description=_SAMPLES, json_schema_extra=_BACKEND)
    base_url: str | None = Field(
        None,
        description="Address of an OpenAI-compatible server, for example http://localhost:8000/v1; auto then "
        "means openai.",
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY",
        description="Environment variable that holds the server's key, if it wants one.",
    )
    concurrency: int = Field(64, ge=1, description="Requests that are under way together.")
    retries: int = Field(
        5,
        ge=0,
        description="How often a request is tried again after a busy or failing server, a lost connection or "
        "a timeout, with growing pauses.",
    )
    timeout: float = Field(
        3600.0,
        gt=0,
        description="Seconds to wait for the reply of one request, all its tokens.",
    )

    def unread(self) -> Mapping[str, Collection[str]]:
        """Return what is the server's business."""
        ours = ("device", "dtype", "threads", "trust_remote_code", "batch_size")
        return {"--backend openai": ours}


class Auto(Vllm, OpenAI):
    """What this machine and ``--base-url`` allow; takes the settings of all, until it is decided."""

    backend: Literal["auto"] = Field(  # type: ignore[assignment]
        "auto", description=_SAMPLES, json_schema_extra=_BACKEND
    )

    def unread(self) -> Mapping[str, Collection[str]]:
        """Return nothing: what is chosen will say."""
        return {}


class Local(Section):
    """The engine of this process, on one device."""

    panel: ClassVar[str] = "Run"

    engine: Literal["local"] = Field("local", description=_TRAINS, json_schema_extra=_ENGINE)


class OpenRLHF(Section):
    """OpenRLHF on the GPUs of one or more machines."""

    panel: ClassVar[str] = "OpenRLHF"

    engine: Literal["openrlhf"] = Field("openrlhf", description=_TRAINS, json_schema_extra=_ENGINE)
    gpus: int = Field(1, ge=1, description="GPUs of each machine.")
    nodes: int = Field(1, ge=1, description="Machines of the Ray cluster.")
    tensor_parallel: int = Field(1, ge=1, description=_TENSOR_PARALLEL)
    gpu_memory_utilization: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of a GPU's memory for vLLM while it samples; training takes its turn with it.",
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        2, description="ZeRO stage of DeepSpeed; 3 spreads the weights too."
    )
    micro_batch: int = Field(16, ge=1, description="Rollouts in one forward and backward pass of a GPU.")
    ray_address: str | None = Field(
        None, description="Ray cluster to train on (default: RAY_ADDRESS, else this machine)."
    )

    @property
    def world(self) -> int:
        """GPUs of a run."""
        return self.gpus * self.nodes

    def unread(self) -> Mapping[str, Collection[str]]:
        """Return what OpenRLHF has its own settings for."""
        return {"--engine openrlhf": ("device", "threads", "batch_size", "micro_batch_tokens")}


Backend = Annotated[Auto | Transformers | Vllm | OpenAI, Field(discriminator="backend")]
Engine = Annotated[Local | OpenRLHF, Field(discriminator="engine")]
