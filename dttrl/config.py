"""One frozen configuration per stage, filled by a YAML file and by flags, checked before any work starts.

``load_config`` merges the two (flags win), and ``dump_config`` writes the resolved configuration so that it
can be fed back. Every field's description is the help text of its flag; its ``panel`` is the group in which
``--help`` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from dttrl.answers.extraction import AnswerKind
from dttrl.answers.kinds import AUTO, load_grader
from dttrl.confidence import Measure, Region
from dttrl.config_fields import (
    DATA,
    EVALUATION,
    METHOD,
    OPTIMISATION,
    RUN,
    SAMPLING,
    SCORING,
    Config,
    ModelFields,
    QuestionFields,
    SamplingFields,
)
from dttrl.config_file import read_fields
from dttrl.config_server import ServerFields
from dttrl.errors import InputError
from dttrl.methods import find_method
from dttrl.scale_config import ScaleFields
from dttrl.selection import Select
from dttrl.training_signal import Centre, DiversityOver
from dttrl.vllm_config import VllmFields
from dttrl.voting.distrivoting import Reject, VoteFunction

Backend = Literal["auto", "transformers", "vllm", "openai"]
Schedule = Literal["cosine", "linear", "constant"]


class ScoringFields(Config):
    """How a completion becomes an answer and a confidence."""

    kind: str = Field(
        AUTO,
        description="Kind of answer: math, choice, text, integer, a custom grader's name, or auto: by the "
        "question's source (aime: integer, gpqa: choice, last letters: text, else math).",
        json_schema_extra=SCORING,
    )
    last_number: bool = Field(
        False,
        description="Without a box or phrase, take the last number as the answer.",
        json_schema_extra=SCORING,
    )
    region: str = Field(
        "last-step",
        description="Tokens that a rollout's confidence averages: last-step (from the last blank line before "
        "the answer), all, tail:N (the last N), bottom:SHARE:WINDOW, lowest:WINDOW (least sure windows).",
        json_schema_extra=SCORING,
    )
    measure: Measure = Field(
        "topk",
        description="Token statistic that a rollout's confidence averages: topk (minus the mean of the k "
        "largest log-probabilities), logprob or perplexity of the sampled tokens, entropy, self-certainty.",
        json_schema_extra=SCORING,
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


class GenerateConfig(ModelFields, QuestionFields, SamplingFields, VllmFields, ServerFields):
    """``dttrl generate``: N rollouts of every question."""

    samples: int = Field(64, ge=1, description="Rollouts of a question.", json_schema_extra=SAMPLING)
    backend: Backend = Field("auto", description="What samples the rollouts.", json_schema_extra=SAMPLING)
    keep_tokens: bool = Field(False, description="Keep the token ids as well.", json_schema_extra=SAMPLING)
    skip_long: bool = Field(False, description="Leave out too long questions.", json_schema_extra=SAMPLING)
    seed: int = Field(0, ge=0, description="Seed of everything random.", json_schema_extra=RUN)


class ScoreConfig(ScoringFields):
    """``dttrl score``: answers, classes and trajectory confidences."""


class TrainConfig(ModelFields, QuestionFields, SamplingFields, ScoringFields, ScaleFields):
    """``dttrl train``: label-free test-time reinforcement learning (alg:framework)."""

    heldout: Path | None = Field(
        None, description="Questions that are only evaluated, never trained on.", json_schema_extra=DATA
    )

    method: str = Field(
        "distri-gmm",
        description="Where labels and weights come from: ttrl, ttrl-gt, ttrl-wsc, distri-wsc or distri-gmm.",
        json_schema_extra=METHOD,
    )
    votes: int = Field(64, ge=1, description="Rollouts of a question that vote.", json_schema_extra=METHOD)
    train_samples: int = Field(
        32, ge=1, description="Voting rollouts that are trained on.", json_schema_extra=METHOD
    )
    select: Select = Field(
        "first",
        description="Which voting rollouts are trained on: first (in sample order) or balanced (as near to "
        "half rewarded and half not as there are).",
        json_schema_extra=METHOD,
    )
    tau: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Diversity penalty: questions with at most this share of different answers count less.",
        json_schema_extra=METHOD,
    )
    diversity_over: DiversityOver = Field(
        "voted", description="Rollouts whose different answers the penalty counts.", json_schema_extra=METHOD
    )
    f_vote: VoteFunction = Field(
        "majority",
        description="How the surer rollouts elect the label in distri-gmm: majority (one vote each), "
        "weighted (by confidence), hierarchical (within intervals of confidence, then among those).",
        json_schema_extra=METHOD,
    )
    reject: Reject = Field(
        "guarded",
        description="When distri-gmm drops the answer that the less sure rollouts elect: guarded (if the "
        "surer ones elect another; with --f-vote majority that cannot change a label), always, off.",
        json_schema_extra=METHOD,
    )
    monotone: bool = Field(
        False,
        description="In distri-gmm a confidence above the mean of the surer rollouts is always sure.",
        json_schema_extra=METHOD,
    )
    min_positives: int = Field(
        1,
        ge=1,
        description="A question with fewer sure rollouts than this gets the plain vote in distri-gmm (more "
        "than 1: not in the paper, whose labels may rest on a single rollout).",
        json_schema_extra=METHOD,
    )
    centre: Centre = Field(
        "none",
        description="question: take each question's mean from its confidences before distri-gmm splits them "
        "(not in the paper).",
        json_schema_extra=METHOD,
    )
    history_window: int | None = Field(
        None, ge=0, description="Past steps that distri-gmm uses (default: all).", json_schema_extra=METHOD
    )
    shift_correction: bool = Field(
        True,
        description="Move the confidences of past steps to where the current step's lie; without it "
        "distri-gmm pools them as they were measured (an ablation).",
        json_schema_extra=METHOD,
    )

    steps: int | None = Field(
        None, ge=1, description="Training steps (default: from --episodes).", json_schema_extra=OPTIMISATION
    )
    episodes: int = Field(10, ge=1, description="Passes over the questions.", json_schema_extra=OPTIMISATION)
    questions_per_step: int = Field(
        8, ge=1, description="Questions of a training step.", json_schema_extra=OPTIMISATION
    )
    questions_per_update: int = Field(
        1, ge=1, description="Questions of a mini-batch (an optimizer step).", json_schema_extra=OPTIMISATION
    )
    micro_batch_tokens: int = Field(
        16384,
        ge=1,
        description="Padded tokens in one forward and backward pass.",
        json_schema_extra=OPTIMISATION,
    )
    learning_rate: float = Field(
        5e-7, gt=0, description="Highest learning rate of AdamW.", json_schema_extra=OPTIMISATION
    )
    warmup: float = Field(
        0.03,
        ge=0,
        le=1,
        description="Share of the steps in which the learning rate rises.",
        json_schema_extra=OPTIMISATION,
    )
    schedule: Schedule = Field(
        "cosine",
        description="Learning rate after the warm-up: constant, or falling to 0 as a cosine or a line.",
        json_schema_extra=OPTIMISATION,
    )
    weight_decay: float = Field(
        0.01, ge=0, description="Weight decay of AdamW.", json_schema_extra=OPTIMISATION
    )
    clip_epsilon: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="How far from 1 the ratio of new to old probability counts.",
        json_schema_extra=OPTIMISATION,
    )
    beta: float = Field(
        0.001,
        ge=0,
        description="Weight of the KL to the initial model (0: none is kept).",
        json_schema_extra=OPTIMISATION,
    )
    max_grad_norm: float = Field(
        1.0,
        gt=0,
        description="Longer gradients are scaled down to this norm.",
        json_schema_extra=OPTIMISATION,
    )

    eval_every: int = Field(
        10,
        ge=0,
        description="Steps between evaluations (0: only before and after).",
        json_schema_extra=EVALUATION,
    )
    eval_samples: int = Field(
        16,
        ge=1,
        description="Rollouts of a question in an evaluation, n of avg@n.",
        json_schema_extra=EVALUATION,
    )
    eval_temperature: float = Field(
        0.6, ge=0, description="Sampling temperature in evaluations.", json_schema_extra=EVALUATION
    )
    eval_top_p: float = Field(
        0.95, gt=0, le=1, description="Nucleus sampling (top-p) in evaluations.", json_schema_extra=EVALUATION
    )

    run: Path = Field(Path("runs/run"), description="Run folder to make.", json_schema_extra=RUN)
    seed: int = Field(0, ge=0, description="Seed of everything random.", json_schema_extra=RUN)
    checkpoint_every: int = Field(
        10, ge=0, description="Steps between checkpoints (0: only at the end).", json_schema_extra=RUN
    )
    keep_tokens: bool = Field(
        False, description="Keep token ids in the step rollouts.", json_schema_extra=RUN
    )
    keep_rollouts: bool = Field(True, description="Write the rollouts of every step.", json_schema_extra=RUN)

    @field_validator("method")
    @classmethod
    def _method(cls, value: str) -> str:
        return find_method(value).name

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        if self.train_samples > self.votes:
            raise ValueError(
                f"train-samples ({self.train_samples}) must be at most votes ({self.votes}): "
                "rollouts are trained on out of those that vote"
            )
        if self.temperature == 0:
            raise ValueError("temperature must be above 0 in training: greedy rollouts are all the same")
        if self.questions_per_step % self.questions_per_update:
            raise ValueError(
                f"questions-per-step ({self.questions_per_step}) must be a multiple of "
                f"questions-per-update ({self.questions_per_update})"
            )
        return self


ConfigT = TypeVar("ConfigT", bound=BaseModel)


def load_config(
    model: type[ConfigT], path: Path | None = None, overrides: Mapping[str, object] | None = None
) -> ConfigT:
    """Return the configuration of a YAML file with ``overrides`` (given flags) on top.

    Relative paths in a file are relative to the working directory, as they are on the command line. Raises
    :class:`InputError`, one line naming file and field, for unreadable YAML, unknown fields and bad values.
    """
    values: dict[str, object] = {}
    if path is not None:
        values.update(read_fields(path))
    values.update(overrides or {})
    try:
        return model.model_validate(values)
    except ValidationError as error:
        named = str(next(iter(error.errors()[0]["loc"]), ""))
        origin = "options" if path is None or named in (overrides or {}) else str(path)
        raise InputError(f"{origin}: {_first_problem(error)}") from None


def dump_config(config: BaseModel) -> str:
    """Return the resolved configuration as YAML that :func:`load_config` reads back to an equal object."""
    return str(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"]).replace("_", "-")
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"there is no field {name!r}"
    if problem["type"] == "missing":
        return f"{name} is needed and was not given"
    given = problem.get("input")
    if not name or message.startswith(f"{name} {given!r} "):  # it names the field and the value itself
        return message
    named = isinstance(given, str) and repr(given) in message
    shown = f" (got {given!r})" if isinstance(given, str | int | float | bool) and not named else ""
    return f"{name}: {message}{shown}"
