"""What opening a backend gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dttrl.questions import Question
from dttrl.sampling.base import Sampler


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
