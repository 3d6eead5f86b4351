"""What a sampler is asked for, and whether it fits; what a sampler is, and what opening a backend gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout
from dttrl.errors import InputError
from dttrl.settings.sections import Sampling


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Rollouts wanted of one question: its prompt as token ids, and the ids of the samples to draw.

    ``prompt_ids`` is empty where the sampler has the prompts itself, because a server has the tokenizer.

    A sample is determined by ``(seed, step, query_id, sample_id)`` and the prompt, so asking for some of a
    question's samples later gives what asking for all of them at once would have given, up to the rounding of
    the model's arithmetic, which differs between batches. To make that equal too, a finished request is given
    again as ``held``: it keeps its place in the batches of the others and yields nothing.
    """

    query_id: str
    prompt_ids: tuple[int, ...]
    sample_ids: tuple[int, ...]
    step: int | None = None
    held: bool = False


class Sampler(Protocol):
    """Anything that turns requests into rollouts."""

    def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        """Yield one list a request that is not ``held``, its rollouts in the order of ``sample_ids``.

        The lists come as questions finish, which need not be the order of the requests; nothing but the
        ``query_id`` of the rollouts says whose they are.
        """
        ...


@dataclass(frozen=True, slots=True)
class OpenedBackend:
    """A sampler with what its requests are made of and what its files must say of it."""

    sampler: Sampler
    encode: Callable[[Question], Sequence[int]]
    """From a question to the token ids of its prompt."""
    metadata: Mapping[str, object]
    """The backend's and the model's part of the rollout file's metadata."""
    files: str | None = None
    """Identifies the files of a local model."""
    context: int | None = None
    """Tokens that a prompt and its completion may have together; None where that is not known."""
    k: int | None = None
    """Entries of a token's confidence, where the backend allows fewer than the configuration asks for."""
    notes: tuple[str, ...] = ()
    """What the user must know before sampling begins, a line each."""


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


def check_request(
    request: SampleRequest, settings: Sampling, context: int | None, named: str, also: str = ""
) -> None:
    """Raise InputError for a request without a prompt or samples, or without room for a whole completion.

    ``context`` is the limit, ``named`` says what it is, ``also`` what else may be done about it.
    """
    question = f"question {request.query_id!r}"
    if not request.prompt_ids:
        raise InputError(f"{question}: the prompt has no tokens; there is nothing to continue")
    if not request.sample_ids:
        raise InputError(f"{question}: no samples were asked for (--samples must be at least 1)")
    if context is None:
        return
    room = context - len(request.prompt_ids)
    if settings.max_new_tokens > room:
        advice = f"use --max-new-tokens {room} or less" if room > 0 else "shorten the prompt"
        raise InputError(
            f"{question}: {len(request.prompt_ids)} prompt tokens and {settings.max_new_tokens} new ones "
            f"exceed {named}; {advice}{also}"
        )
