"""Graders of other packages, found by their entry point in the group ``dttrl.graders``.

The entry point's name is the kind. It names an object, or a class without arguments, with
``equal(a, b) -> bool`` and, if answers are not found as text answers are, ``extract(text) -> str | None``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any, Final

from dttrl.answers.equivalence import Verdict
from dttrl.answers.extraction import Extraction, extract
from dttrl.errors import InputError

GROUP: Final = "dttrl.graders"


class CustomGrader:
    """What an entry point gave us. Equality is asked in both directions, and both must agree."""

    def __init__(
        self, equal: Callable[[str, str], bool], find: Callable[[str], str | None] | None = None
    ) -> None:
        self._equal = equal
        self.find = find

    def verdict(self, a: str, b: str) -> Verdict:
        """Return YES or NO; UNKNOWN when the grader fails or depends on the order."""
        try:
            verdicts = {bool(self._equal(a, b)), bool(self._equal(b, a))}
        except Exception:  # somebody else's code on a model's text
            return Verdict.UNKNOWN
        if len(verdicts) > 1:
            return Verdict.UNKNOWN
        return Verdict.YES if verdicts.pop() else Verdict.NO


def custom_graders() -> dict[str, metadata.EntryPoint]:
    """Return the installed entry points by name."""
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def load_grader(name: str) -> CustomGrader:
    """Load a custom grader; raises :class:`InputError` when there is none, or it has no ``equal``."""
    points = custom_graders()
    if name not in points:
        known = ", ".join(["auto", "math", "choice", "text", "integer", *sorted(points)])
        raise InputError(f"unknown kind of answer {name!r}; known are {known}")
    try:
        found: Any = points[name].load()
        found = found() if isinstance(found, type) else found
    except Exception as error:  # whatever importing somebody else's package may raise
        raise InputError(f"the grader {name!r} ({points[name].value}) cannot be loaded: {error}") from error
    equal, find = getattr(found, "equal", None), getattr(found, "extract", None)
    if not callable(equal):
        raise InputError(f"the grader {name!r} ({points[name].value}) has no method equal(a, b)")
    return CustomGrader(equal, find if callable(find) else None)


def custom_extraction(grader: CustomGrader, text: str) -> Extraction:
    """Find an answer with the grader's own ``extract``, or as a text answer."""
    if grader.find is None:
        return extract(text, kind="text")
    try:
        answer = grader.find(text)
    except Exception:  # somebody else's code on a model's text
        return Extraction()
    if not isinstance(answer, str) or not answer.strip():
        return Extraction()
    place = text.rfind(answer)
    return Extraction(answer.strip(), "custom", place if place >= 0 else None)
