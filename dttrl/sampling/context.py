"""Which prompts fit the model's context together with their completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dttrl.errors import InputError
from dttrl.questions import Question
from dttrl.sampling.base import SampleRequest
from dttrl.settings.sections import Sampling


def fitting(
    questions: Sequence[Question],
    encode: Callable[[Question], Sequence[int]],
    *,
    context: int | None,
    max_new_tokens: int,
) -> tuple[list[Question], list[str]]:
    """Return the questions whose prompts leave room for a whole completion, and the ids of the others.

    ``context`` is the number of positions, None where there is no limit. InputError if no question fits.
    """
    if context is None:
        return list(questions), []
    kept, skipped = [], []
    for question in questions:
        if len(encode(question)) + max_new_tokens <= context:
            kept.append(question)
        else:
            skipped.append(question.id)
    if questions and not kept:
        raise InputError(
            f"--skip-long leaves no question: every prompt with {max_new_tokens} new tokens exceeds the "
            f"context of {context} tokens; lower --max-new-tokens"
        )
    return kept, skipped


def positions(config: object) -> int | None:
    """Return how many positions a model's configuration allows."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = getattr(text, "max_position_embeddings", None)
    return None if found is None else int(found)


def check_asked(request: SampleRequest) -> None:
    """Raise InputError for a request without a prompt or without samples."""
    question = f"question {request.query_id!r}"
    if not request.prompt_ids:
        raise InputError(f"{question}: the prompt has no tokens; there is nothing to continue")
    if not request.sample_ids:
        raise InputError(f"{question}: no samples were asked for (--samples must be at least 1)")


def check_room(request: SampleRequest, settings: Sampling, context: int, named: str, also: str = "") -> None:
    """Raise InputError for a prompt that leaves no room for a whole completion.

    ``named`` says what the limit is, ``also`` what else may be done about it.
    """
    room = context - len(request.prompt_ids)
    if settings.max_new_tokens > room:
        advice = f"use --max-new-tokens {room} or less" if room > 0 else "shorten the prompt"
        raise InputError(
            f"question {request.query_id!r}: {len(request.prompt_ids)} prompt tokens and "
            f"{settings.max_new_tokens} new ones exceed {named}; {advice}{also}"
        )
