"""Which prompts fit the model's context together with their completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dttrl.errors import InputError
from dttrl.questions import Question


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
