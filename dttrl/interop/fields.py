"""One rollout as another tool saved it, and how its fields are read out of a row.

Every reader of a field raises InputError with the place (file and line or row) and the field; nothing is
guessed from a value of another type.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.answers.extraction import extract
from dttrl.data.rollouts import FinishReason
from dttrl.data.row_files import Place, lookup
from dttrl.data.validation import kind, one_line, shown
from dttrl.errors import InputError

ROLES = ("question", "id", "sample", "answer", "confidence", "gold", "text", "step", "source")
"""What ``--columns ROLE=FIELD`` may name."""


@dataclass(frozen=True)
class ReadOptions:
    """What the user said about the files.

    ``score`` is the field that becomes the confidence; ``columns`` maps a role of ROLES to a field (a dot
    names a field within a field); ``k`` is the number of log-probabilities asked of the server, None: told
    from the first rollout that has them; ``allow_pickle`` lets pickles be read at all.
    """

    score: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    k: int | None = None
    allow_pickle: bool = False


@dataclass
class Findings:
    """What a reader noticed on the way: remarks, fields that may serve as a score, facts of the file."""

    remarks: Counter[str] = field(default_factory=Counter)
    scores: dict[str, None] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """One rollout of a file; None where the format does not have the entry.

    ``sample`` is the tool's own number of the rollout within its question. The token arrays are as in
    ``rollouts.Rollout``. ``score`` becomes the confidence.
    """

    place: Place
    query_id: str
    sample: int | None = None
    step: int | None = None
    source: str | None = None
    prompt: str | None = None
    gold: str | None = None
    text: str | None = None
    finish_reason: FinishReason | None = None
    num_tokens: int | None = None
    token_ids: Sequence[int] | NDArray[np.int32] | None = None
    token_offset: NDArray[np.int32] | None = None
    token_confidence: NDArray[np.float32] | None = None
    token_logprob: NDArray[np.float32] | None = None
    answer: str | None = None
    confidence: float | None = None
    model: str | None = None


class Fields(NamedTuple):
    """The fields of one row, and where it stands; names are as in :func:`~dttrl.data.row_files.lookup`.

    Without a name (None: nothing was chosen for a role) a field is None.
    """

    place: Place
    row: Any

    def get(self, name: str | None) -> Any:
        """Return a field, None where it is absent."""
        return None if name is None else lookup(self.row, name)

    def need(self, name: str) -> Any:
        """Return a field that must be there."""
        value = lookup(self.row, name)
        if value is None:
            there = f" (fields: {one_line(', '.join(map(str, self.row)))})" if self.row else ""
            raise InputError(f"{self.place}: no field {name!r}{there}")
        return value

    def _typed(self, name: str, expected: type) -> Any:
        value = self.need(name)
        if not isinstance(value, expected):
            raise InputError(f"{self.place}: field {name!r} is {kind(value)}, expected {kind(expected())}")
        return value

    def text(self, name: str) -> str:
        """Return a field that must be text (it may be empty)."""
        value: str = self._typed(name, str)
        return value

    def items(self, name: str) -> list[Any]:
        """Return a field that must be a list."""
        value: list[Any] = self._typed(name, list)
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field that must be a list of texts."""
        return texts(self.items(name), name, self.place)

    def inside(self, name: str) -> Fields:
        """Return the fields of a field that must be an object."""
        return Fields(self.place, self._typed(name, dict))

    def objects(self, name: str) -> list[Fields]:
        """Return the fields of each entry of a list, all of which must be objects."""
        return [self.inside(f"{name}.{index}") for index in range(len(self.items(name)))]

    def chat(self, name: str) -> str:
        """Return a field that must be text or a chat, as :func:`chat_text` does."""
        return chat_text(self.need(name), name, self.place)

    def label(self, name: str | None) -> str | None:
        """Return a field as :func:`label` does."""
        return None if name is None else label(lookup(self.row, name), name, self.place)

    def whole(self, name: str | None) -> int | None:
        """Return a field that must be a whole number in the range of int32, None where it is absent."""
        value = self.get(name)
        if value is None or value == "":
            return None
        try:
            if isinstance(value, bool):
                raise ValueError
            number = int(value) if isinstance(value, (int, str)) else int(float(value))
            if not -(2**31) <= number < 2**31 or (not isinstance(value, str) and number != value):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"{self.place}: field {name!r} is {shown(value)}, expected a whole number"
            ) from None
        return number

    def number(self, name: str | None) -> float | None:
        """Return a field that must be a number (true and false are 1 and 0), None where absent or NaN."""
        value = self.get(name)
        if value is None or value == "":
            return None
        try:
            if not isinstance(value, (int, float, str, Decimal)):
                raise ValueError
            number = float(value)
        except (ValueError, OverflowError):
            raise InputError(f"{self.place}: field {name!r} is {shown(value)}, expected a number") from None
        return None if math.isnan(number) else number

    def score(
        self, options: ReadOptions, findings: Findings, leave_out: Sequence[str] = (), *, count: int = 1
    ) -> float | None:
        """Return the field that ``--score`` names; notes those that hold a number and so may serve.

        One value cannot be the score of a row that has several (``count``) rollouts.
        """
        known = [
            name
            for name, value in self.row.items()
            if name not in leave_out and isinstance(value, (int, float)) and not name.startswith("__")
        ]
        findings.scores.update(dict.fromkeys(known))
        name = options.score
        if name is None:
            return None
        if name not in self.row and lookup(self.row, name) is None:
            raise no_score(name, self.place, known)
        if count > 1:
            raise InputError(
                f"{self.place}: field {name!r} is one value for {count} responses, so it cannot be the score"
                " of each; leave out --score"
            )
        return self.number(name)


def no_score(option: str, place: Place, known: Sequence[str]) -> InputError:
    """Return the error of a ``--score`` field that is not there."""
    there = f"; fields that hold a number: {', '.join(known)}" if known else ""
    return InputError(f"{place}: no field {option!r} for --score{one_line(there)}")


def texts(values: list[Any], name: str, place: Place, hint: str = "") -> list[str]:
    """Return the entries of a list, all of which must be text; raises with ``hint`` behind the message."""
    for number, text in enumerate(values):
        if not isinstance(text, str):
            raise InputError(f"{place}: field '{name}.{number}' is {kind(text)}, expected text{hint}")
    return values


def label(value: Any, name: str, place: Place) -> str | None:
    """Return an answer or an id as text: text, a number, or a list of one of them; None for an empty one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, (bool, list, dict)) or not isinstance(value, (str, int, float, Decimal)):
        raise InputError(f"{place}: field {name!r} is {kind(value)}, expected text or a number")
    return str(value).strip() or None


def chat_text(value: Any, name: str, place: Place) -> str:
    """Return the text of a message, of its parts, or of a chat (of its user's messages; else of all).

    Parts that are not text (images) are left out.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        roles = [part.get("role") for part in value if isinstance(part, dict)]
        chosen = [
            part
            for part in value
            if "user" not in roles or (isinstance(part, dict) and part.get("role") == "user")
        ]
        return "\n\n".join(filter(None, (chat_text(part, name, place) for part in chosen)))
    if isinstance(value, dict):
        for key in ("content", "text"):
            if isinstance(value.get(key), (str, list)):
                return chat_text(value[key], name, place)
        if "role" in value or "type" in value:
            return ""
    raise InputError(f"{place}: field {name!r} is {kind(value)}, expected text or a chat")


def reference(text: str | None) -> str | None:
    """Return the final answer of a reference that is a worked solution; other references as they are.

    >>> reference("#### 4"), reference("1,000")
    ('4', '1,000')
    """
    if text is None or not ("####" in text or "\\boxed" in text):
        return text
    return extract(text).answer or text


def question_key(value: Any) -> str:
    """Return an id for a question that has none: a digest of its prompt, the same in every file.

    >>> question_key("1+1?") == question_key("1+1?") != question_key("1+2?")
    True
    """
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return "q-" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def finish(reason: Any) -> FinishReason | None:
    """Return our name of a finish reason of any tool; None where nothing is said.

    >>> finish("max_tokens"), finish("eos"), finish("content_filter"), finish(None)
    ('length', 'stop', 'abort', None)
    """
    if not isinstance(reason, str) or not reason or reason == "unknown":
        return None
    if reason in ("length", "max_tokens", "model_length"):
        return "length"
    return "abort" if reason in ("abort", "content_filter", "error", "timeout") else "stop"
