"""The sections that stages share: model, questions, sampling, scoring, update, evaluation, what is kept.

The section of the training signal stands beside its methods (:class:`dttrl.method.methods.Signal`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from dttrl.answers.extraction import AnswerKind
from dttrl.answers.kinds import AUTO, load_grader
from dttrl.method.confidence import Measure, Region
from dttrl.ranges import NO_RANGE, STEADY, SURE, Count, SampleRange, Threshold, most, with_threshold
from dttrl.section import Section, in_panel

TemplateName = Literal["raw", "boxed", "chat", "chat-boxed"]
Schedule = Literal["cosine", "linear", "constant"]


class Model(Section):
    """Which model, and in which arithmetic it runs where."""

    panel: ClassVar[str] = "Model"

    name: str = Field(alias="model", description="Hugging Face id, local folder, .gguf file, or 'smollm2'.")
    revision: str | None = Field(None, description="Revision of a hub model.")
    trust_remote_code: bool = Field(
        False, description="Run the code that a hub repository ships with its model."
    )
    device: str = Field("auto", description="Where the model runs: auto, cpu, cuda, cuda:1 or mps.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Arithmetic: auto is bfloat16 on a GPU, float32 on a CPU."
    )
    threads: int | None = Field(None, ge=1, description="CPU threads of torch (default: torch's own choice).")


class Questions(Section):
    """Which questions, and how they become prompts."""

    panel: ClassVar[str] = "Questions"

    path: Path = Field(
        alias="questions", description="Questions: JSONL, JSON, CSV or Parquet with a prompt column."
    )
    prompt_column: str = Field("prompt", description="Column of the question.")
    answer_column: str = Field("answer", description="Column of the gold answer; it may be absent.")
    id_column: str = Field("id", description="Column of the question's id.")
    source_column: str = Field("source", description="Column of the benchmark's name.")
    limit: int | None = Field(None, ge=1, description="Only the first N questions.")
    template: TemplateName = Field(
        "chat-boxed",
        description="How a question becomes a prompt: raw (as it is), boxed (with the instruction to box the "
        "answer), chat (through the model's chat template), chat-boxed (both).",
    )
    suffix: str | None = Field(
        None, description="Instruction that the boxed templates append instead of the usual one."
    )
    system: str | None = Field(None, description="System message of the chat template.")


class Sampling(Section):
    """How rollouts are drawn; what every sampler needs to know besides the prompts.

    The token confidence is taken before temperature and truncation. With both, ``top_p`` is a share of what
    ``top_k`` left. ``batch_size`` changes speed and memory, not the samples.
    """

    panel: ClassVar[str] = "Sampling"

    temperature: float = Field(
        1.0,
        ge=0,
        description="Sampling temperature; the paper uses 1.0 for Qwen2.5-Math and reasoning models and 0.6 "
        "for the others. 0 is greedy.",
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample from the likeliest tokens with this total probability (nucleus sampling).",
    )
    top_k: int = Field(0, ge=0, description="Sample from the k likeliest tokens (0: all).")
    max_new_tokens: int = Field(3072, ge=1, description="Longest completion, in tokens.")
    stop: tuple[str, ...] = Field((), description="Stop string; may be repeated.")
    k: int = Field(
        20,
        ge=1,
        description="How many of the largest log-probabilities a token's confidence averages.",
    )
    batch_size: int = Field(64, ge=1, description="Sequences that are decoded together.")
    seed: int = Field(0, ge=0, description="Seed of everything random.", json_schema_extra=in_panel("Run"))

    @property
    def statistics(self) -> bool:
        """Whether token statistics are taken; a copy with ``k`` 0 skips them (empty arrays)."""
        return self.k > 0

    @field_validator("stop")
    @classmethod
    def _stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError(
                "a stop string (--stop) is empty; an empty string would end every rollout at once"
            )
        return value


class Scoring(Section):
    """How a completion becomes an answer and a confidence."""

    panel: ClassVar[str] = "Scoring"

    kind: str = Field(
        AUTO,
        description="Kind of answer: math, choice, text, integer, a custom grader's name, or auto: by the "
        "question's source (aime: integer, gpqa: choice, last letters: text, else math).",
    )
    last_number: bool = Field(
        False, description="Without a box or phrase, take the last number as the answer."
    )
    region: str = Field(
        "last-step",
        description="Tokens that a rollout's confidence averages: last-step (from the last blank line before "
        "the answer), all, tail:N (the last N), bottom:SHARE:WINDOW, lowest:WINDOW (least sure windows).",
    )
    measure: Literal[Measure, "auto"] = Field(
        "topk",
        description="Token statistic that a rollout's confidence averages: topk (minus the mean of the k "
        "largest log-probabilities), logprob or perplexity of the sampled tokens, entropy, self-certainty; "
        "auto chooses statistic and region without gold, by what they add to the likelihood of the answers.",
    )

    @field_validator("kind")
    @classmethod
    def _kind(cls, value: str) -> str:
        if value != AUTO and value not in get_args(AnswerKind):
            load_grader(value)
        return value

    @field_validator("region")
    @classmethod
    def _region(cls, value: str) -> str:
        return str(Region.parse(value))


class Update(Section):
    """How the policy learns from a step's advantages, and for how many steps."""

    panel: ClassVar[str] = "Optimisation"

    steps: int | None = Field(None, ge=1, description="Training steps (default: from --episodes).")
    episodes: int = Field(10, ge=1, description="Passes over the questions.")
    questions_per_step: int = Field(8, ge=1, description="Questions of a training step.")
    questions_per_update: int = Field(1, ge=1, description="Questions of a mini-batch (an optimizer step).")
    micro_batch_tokens: int = Field(
        16384, ge=1, description="Padded tokens in one forward and backward pass."
    )
    learning_rate: float = Field(5e-7, gt=0, description="Highest learning rate of AdamW.")
    warmup: float = Field(
        0.03, ge=0, le=1, description="Share of the steps in which the learning rate rises."
    )
    schedule: Schedule = Field(
        "cosine",
        description="Learning rate after the warm-up: constant, or falling to 0 as a cosine or a line.",
    )
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of AdamW.")
    clip_epsilon: float = Field(
        0.2, gt=0, lt=1, description="How far from 1 the ratio of new to old probability counts."
    )
    beta: float = Field(0.001, ge=0, description="Weight of the KL to the initial model (0: none is kept).")
    max_grad_norm: float = Field(1.0, gt=0, description="Longer gradients are scaled down to this norm.")

    @model_validator(mode="after")
    def _whole_mini_batches(self) -> Update:
        if self.questions_per_step % self.questions_per_update:
            raise ValueError(
                f"questions-per-step ({self.questions_per_step}) must be a multiple of "
                f"questions-per-update ({self.questions_per_update})"
            )
        return self


class Evaluation(Section):
    """How often and how the policy is evaluated on questions with gold answers."""

    panel: ClassVar[str] = "Evaluation"

    every: int = Field(
        10, ge=0, alias="eval_every", description="Steps between evaluations (0: only before and after)."
    )
    samples: int = Field(
        16,
        ge=1,
        alias="eval_samples",
        description="Rollouts of a question in an evaluation, n of avg@n.",
    )
    temperature: float = Field(
        0.6, ge=0, alias="eval_temperature", description="Sampling temperature in evaluations."
    )
    top_p: float = Field(
        0.95, gt=0, le=1, alias="eval_top_p", description="Nucleus sampling (top-p) in evaluations."
    )
    heldout: Path | None = Field(
        None,
        description="Questions that are only evaluated, never trained on.",
        json_schema_extra=in_panel("Questions"),
    )

    def due(self, step: int, total: int) -> bool:
        """Whether the policy is evaluated after ``step`` of ``total`` steps (0: before the first)."""
        return step in (0, total) or bool(self.every and step % self.every == 0)


class Keeping(Section):
    """Where a run lies and what it keeps."""

    panel: ClassVar[str] = "Run"

    run: Path = Field(Path("runs/run"), description="Run folder to make.")
    checkpoint_every: int = Field(10, ge=0, description="Steps between checkpoints (0: only at the end).")
    keep_tokens: bool = Field(False, description="Keep token ids in the step rollouts.")
    keep_rollouts: bool = Field(True, description="Write the rollouts of every step.")


class Generation(Section):
    """How many rollouts ``dttrl generate`` makes, and what it keeps of them."""

    panel: ClassVar[str] = "Sampling"

    count: Count = Field(
        64,
        alias="samples",
        description="Rollouts of a question: a number, or a range 8..64, from which a question takes as many "
        "blocks of 8 as it needs to be sure.",
    )
    until: Threshold = Field(
        None,
        description="With a range of --samples: a question stops when its most probable answer is right with "
        f"this probability, at every look over its last {STEADY} rollouts (default with a range: {SURE:g}).",
    )
    keep_tokens: bool = Field(False, description="Keep the token ids as well.")
    skip_long: bool = Field(False, description="Leave out too long questions.")

    @model_validator(mode="before")
    @classmethod
    def _sure(cls, given: Any) -> Any:
        return with_threshold(given, "samples")

    @property
    def samples(self) -> int:
        """Rollouts of a question, at most."""
        return most(self.count)

    def unread(self) -> Mapping[str, Collection[str]]:
        """Return what decides when a question stops, where none does."""
        if isinstance(self.count, SampleRange):
            return {}
        scoring = tuple(Scoring.model_fields)
        return {NO_RANGE.format("samples"): ("until", *scoring)}
