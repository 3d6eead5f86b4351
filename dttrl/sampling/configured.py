"""What a stage's configuration means for sampling: its questions, prompts, settings and file metadata.

Both stages that sample, generation and training, read their configuration here, so that the same fields give
the same prompts and the same metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dttrl import __version__
from dttrl.config_fields import QuestionFields, SamplingFields
from dttrl.questions import BOXED_SUFFIX, Question, read_questions, render
from dttrl.sampling.settings import SamplingSettings

if TYPE_CHECKING:
    from dttrl.sampling.models import LoadedTokenizer


def configured_questions(
    config: QuestionFields, path: Path | None = None, *, limit: int | None = None
) -> list[Question]:
    """Read ``config.questions`` (or ``path``) with the configured columns; raises what the reader raises."""
    return read_questions(
        config.questions if path is None else path,
        prompt_column=config.prompt_column,
        answer_column=config.answer_column,
        id_column=config.id_column,
        source_column=config.source_column,
        limit=limit,
    )


def prompt_encoder(config: QuestionFields, loaded: LoadedTokenizer) -> Callable[[Question], tuple[int, ...]]:
    """Return the function from a question to the token ids of its rendered prompt."""
    chat = config.template.startswith("chat")

    def encode(question: Question) -> tuple[int, ...]:
        return loaded.encode(prompt_text(config, question, chat=loaded.chat), chat=chat)

    return encode


def prompt_text(
    config: QuestionFields, question: Question, *, chat: Callable[[list[dict[str, str]]], str] | None
) -> str:
    """Return the rendered prompt; ``chat`` makes text of the messages of a chat template."""
    return render(question, config.template, suffix=_suffix(config), system=config.system, chat=chat)


def sampling_settings(config: SamplingFields, *, seed: int, **changes: Any) -> SamplingSettings:
    """Return the configured settings with ``changes`` (fields of :class:`SamplingSettings`) on top."""
    settings = SamplingSettings(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens,
        stop=config.stop,
        k=config.k,
        seed=seed,
        batch_size=config.batch_size,
    )
    return replace(settings, **changes)


class NamedModel(Protocol):
    """What a rollout file says of a model."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def revision(self) -> str | None: ...  # noqa: D102


def prompt_metadata(config: QuestionFields, loaded: NamedModel) -> dict[str, object]:
    """Return what a rollout file must say of its model and prompts."""
    return {
        "model": loaded.name,
        "revision": loaded.revision,
        "template": config.template,
        "suffix": _suffix(config) if config.template.endswith("boxed") else None,
        "system": config.system,
        "dttrl_version": __version__,
    }


def settings_metadata(settings: SamplingSettings) -> dict[str, object]:
    """Return what a rollout file must say of how its rollouts were drawn."""
    return {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "max_tokens": settings.max_new_tokens,
        "stop": list(settings.stop),
        "seed": settings.seed,
        "k": settings.k,
    }


def transformers_metadata(dtype: object) -> dict[str, object]:
    """Return what a rollout file must say of the transformers backend; ``dtype`` is the arithmetic's."""
    import transformers

    return {
        "backend": "transformers",
        "backend_version": transformers.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "logprobs_mode": "raw_logprobs",
        "entropy": "full",
    }


def _suffix(config: QuestionFields) -> str:
    return BOXED_SUFFIX if config.suffix is None else config.suffix
