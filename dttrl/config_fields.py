"""Groups of fields that the configurations of several stages share: model, questions, sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TemplateName = Literal["raw", "boxed", "chat", "chat-boxed"]


def panel(name: str) -> dict[str, Any]:
    """Return what puts a field into a group of ``--help``."""
    return {"panel": name}


MODEL, DATA, METHOD = panel("Model"), panel("Questions"), panel("Method")
SAMPLING, SCORING, OPTIMISATION = panel("Sampling"), panel("Scoring"), panel("Optimisation")
EVALUATION, RUN = panel("Evaluation"), panel("Run")


class Config(BaseModel):
    """A configuration: frozen, and without fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class ModelFields(Config):
    """Which model, and where it runs."""

    model: str = Field(
        description="Hugging Face id, local folder, .gguf file, or 'smollm2'.", json_schema_extra=MODEL
    )
    revision: str | None = Field(None, description="Revision of a hub model.", json_schema_extra=MODEL)
    trust_remote_code: bool = Field(
        False, description="Run the code that a hub repository ships with its model.", json_schema_extra=MODEL
    )
    device: str = Field(
        "auto", description="Where the model runs: auto, cpu, cuda, cuda:1 or mps.", json_schema_extra=MODEL
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Arithmetic: auto is bfloat16 on a GPU, float32 on a CPU.",
        json_schema_extra=MODEL,
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of torch (default: torch's own choice).", json_schema_extra=MODEL
    )


class QuestionFields(Config):
    """Which questions, and how they become prompts."""

    questions: Path = Field(
        description="Questions: JSONL, JSON, CSV or Parquet with a prompt column.", json_schema_extra=DATA
    )
    prompt_column: str = Field("prompt", description="Column of the question.", json_schema_extra=DATA)
    answer_column: str = Field(
        "answer", description="Column of the gold answer; it may be absent.", json_schema_extra=DATA
    )
    id_column: str = Field("id", description="Column of the question's id.", json_schema_extra=DATA)
    source_column: str = Field(
        "source", description="Column of the benchmark's name.", json_schema_extra=DATA
    )
    limit: int | None = Field(None, ge=1, description="Only the first N questions.", json_schema_extra=DATA)
    template: TemplateName = Field(
        "chat-boxed",
        description="How a question becomes a prompt: raw (as it is), boxed (with the instruction to box the "
        "answer), chat (through the model's chat template), chat-boxed (both).",
        json_schema_extra=DATA,
    )
    suffix: str | None = Field(
        None,
        description="Instruction that the boxed templates append instead of the usual one.",
        json_schema_extra=DATA,
    )
    system: str | None = Field(
        None, description="System message of the chat template.", json_schema_extra=DATA
    )


class SamplingFields(Config):
    """How rollouts are drawn."""

    temperature: float = Field(
        1.0,
        ge=0,
        description="Sampling temperature; the paper uses 1.0 for Qwen2.5-Math and reasoning models and 0.6 "
        "for the others. 0 is greedy.",
        json_schema_extra=SAMPLING,
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample from the likeliest tokens with this total probability (nucleus sampling).",
        json_schema_extra=SAMPLING,
    )
    top_k: int = Field(
        0, ge=0, description="Sample from the k likeliest tokens (0: all).", json_schema_extra=SAMPLING
    )
    max_new_tokens: int = Field(
        3072, ge=1, description="Longest completion, in tokens.", json_schema_extra=SAMPLING
    )
    stop: tuple[str, ...] = Field((), description="Stop string; may be repeated.", json_schema_extra=SAMPLING)
    k: int = Field(
        20,
        ge=1,
        description="How many of the largest log-probabilities a token's confidence averages.",
        json_schema_extra=SAMPLING,
    )
    batch_size: int = Field(
        64, ge=1, description="Sequences that are decoded together.", json_schema_extra=SAMPLING
    )
