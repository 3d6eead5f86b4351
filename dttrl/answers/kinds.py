"""Which kind of answer a question has, by the name of its data set.

The names are those of the usual benchmarks, in any case and with anything around them: ``aime2024``,
``AIME-TTT``, ``HuggingFaceH4/aime_2024``. A set that is not named here has mathematical answers, among them
MATH-500, AMC (whose answers are not all integers from 0 to 999), HMMT and BRUMO.
"""

from __future__ import annotations

import re
from typing import Final

from dttrl.answers.extraction import AnswerKind

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
