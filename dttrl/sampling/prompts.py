"""Questions as prompts, and what rollout files say of model, prompts and sampling.

Generation and training both come here, so that the same settings give the same prompts and metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dttrl import __version__
from dttrl.data.questions import BOXED_SUFFIX, Question, read_questions, render
from dttrl.settings.sections import Questions, Sampling

if TYPE_CHECKING:
    from dttrl.sampling.models import LoadedTokenizer


def load_questions(asked: Questions, heldout: Path | None = None) -> list[Question]:
    """Read the questions, or all of the ``heldout`` file; raises what the reader raises."""
    return read_questions(
        asked.path if heldout is None else heldout,
        prompt_column=asked.prompt_column,
        answer_column=asked.answer_column,
        id_column=asked.id_column,
        source_column=asked.source_column,
        limit=asked.limit if heldout is None else None,
    )


def prompt_encoder(asked: Questions, loaded: LoadedTokenizer) -> Callable[[Question], tuple[int, ...]]:
    """Return the function from a question to the token ids of its rendered prompt."""
    chat = asked.template.startswith("chat")

    def encode(question: Question) -> tuple[int, ...]:
        return loaded.encode(prompt_text(asked, question, chat=loaded.chat), chat=chat)

    return encode


def prompt_text(
    asked: Questions, question: Question, *, chat: Callable[[list[dict[str, str]]], str] | None
) -> str:
    """Return the rendered prompt; ``chat`` makes text of the messages of a chat template."""
    return render(question, asked.template, suffix=_suffix(asked), system=asked.system, chat=chat)


def prompt_metadata(asked: Questions, model: str, revision: str | None = None) -> dict[str, object]:
    """Return what a rollout file must say of its model and prompts."""
    return {
        "model": model,
        "revision": revision,
        "template": asked.template,
        "suffix": _suffix(asked) if asked.template.endswith("boxed") else None,
        "system": asked.system,
        "dttrl_version": __version__,
    }


def settings_metadata(settings: Sampling) -> dict[str, object]:
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


def _suffix(asked: Questions) -> str:
    return BOXED_SUFFIX if asked.suffix is None else asked.suffix
