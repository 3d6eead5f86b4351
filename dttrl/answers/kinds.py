"""The kinds of answers: which kind a data set has, by its name, and the graders of other packages.

The names are those of the usual benchmarks, in any case and with anything around them: ``aime2024``,
``AIME-TTT``, ``HuggingFaceH4/aime_2024``. A set that is not named here has mathematical answers, among them
MATH-500, AMC (whose answers are not all integers from 0 to 999), HMMT and BRUMO.

Other packages add kinds by an entry point in the group ``dttrl.graders``, whose name is the kind. It names an
object, or a class without arguments, with ``equal(a, b) -> bool`` and, if answers are not found as text
answers are, ``extract(text) -> str | None``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final, get_args

from dttrl.answers.equivalence import Verdict
from dttrl.answers.extraction import AnswerKind, Extraction, extract
from dttrl.errors import InputError

AUTO: Final = "auto"
"""The kind that is chosen question by question."""

_KINDS: Final[tuple[tuple[re.Pattern[str], AnswerKind], ...]] = (
    (re.compile(r"(?<![a-z])aime(?![a-z])"), "integer"),
    (
        re.compile(r"gpqa|mmlu|(?<![a-z])arc[-_ ]?(?:c|e|challenge|easy)(?![a-z])|(?<![a-z])(?:medqa|csqa)"),
        "choice",
    ),
    (re.compile(r"last[-_ ]?letter|coin[-_ ]?flip"), "text"),
)


def kind_of_source(source: str | None, query_id: str = "") -> AnswerKind:
    """Return the kind of a data set; where a question has no source, its id may begin with one.

    >>> kind_of_source("AIME-TTT"), kind_of_source(None, "gpqa_diamond-17"), kind_of_source("math500")
    ('integer', 'choice', 'math')
    """
    name = (source or query_id).casefold()
    return next((kind for pattern, kind in _KINDS if pattern.search(name)), "math")


class CustomGrader:
    """What an entry point gave us. Equality is asked in both directions, and both must agree."""

    def __init__(
        self, equal: Callable[[str, str], bool], find: Callable[[str], str | None] | None = None
    ) -> None:
        self._equal = equal
        self._find = find

    def verdict(self, a: str, b: str) -> Verdict:
        """Return YES or NO; UNKNOWN when the grader fails or depends on the order."""
        try:
            verdicts = {bool(self._equal(a, b)), bool(self._equal(b, a))}
        except Exception:  # somebody else's code on a model's text
            return Verdict.UNKNOWN
        if len(verdicts) > 1:
            return Verdict.UNKNOWN
        return Verdict.YES if verdicts.pop() else Verdict.NO

    def extract(self, text: str) -> Extraction:
        """Find an answer with the grader's own ``extract``, or as a text answer."""
        if self._find is None:
            return extract(text, kind="text")
        try:
            answer = self._find(text)
        except Exception:  # somebody else's code on a model's text
            return Extraction()
        if not isinstance(answer, str) or not answer.strip():
            return Extraction()
        place = text.rfind(answer)
        return Extraction(answer.strip(), "custom", place if place >= 0 else None)


def load_grader(name: str) -> CustomGrader:
    """Load a custom grader; raises :class:`InputError` when there is none, or it has no ``equal``."""
    points = {point.name: point for point in metadata.entry_points(group="dttrl.graders")}
    if name not in points:
        known = ", ".join([AUTO, *get_args(AnswerKind), *sorted(points)])
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
