"""One rollout as another tool saved it, and how its fields are read out of JSON-like rows.

Every accessor raises InputError with the place (file and line or row) and the field; nothing is guessed
from a value of another type.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dttrl.answers.extraction import extract
from dttrl.errors import InputError
from dttrl.rollouts import FinishReason
from dttrl.validation import kind, one_line, shown

ROLES = ("question", "id", "sample", "answer", "confidence", "gold", "text", "step", "source")
"""What ``--columns ROLE=FIELD`` may name."""


class Place(NamedTuple):
    """Where a rollout stands: file, number, and what is numbered ("line" from 1, rows from 0)."""

    path: Path
    number: int
    unit: str = "row"

    def __str__(self) -> str:
        """Return "file:line" or "file, row number"."""
        if self.unit == "line":
            return f"{self.path}:{self.number}"
        return f"{self.path}, {self.unit} {self.number}"


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


def lookup(row: Any, name: str) -> Any:
    """Return a field by its name, or by its path through nested fields ("reward_model.ground_truth").

    A number is an index into a list. None where there is no such field.

    >>> lookup({"doc": {"id": 3}, "a.b": 1}, "doc.id"), lookup({"a.b": 1}, "a.b"), lookup({"x": [5]}, "x.0")
    (3, 1, 5)
    """
    if isinstance(row, Mapping) and name in row:
        return row[name]
    value = row
    for part in name.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def require(row: Any, name: str, place: Place) -> Any:
    """Return a field that must be there."""
    value = lookup(row, name)
    if value is None:
        raise InputError(f"{place}: no field {name!r}{_fields(row)}")
    return value


def text_field(row: Any, name: str, place: Place) -> str:
    """Return a field that must be text (it may be empty)."""
    value = require(row, name, place)
    if not isinstance(value, str):
        raise InputError(f"{place}: field {name!r} is {kind(value)}, expected text")
    return value


def list_field(row: Any, name: str, place: Place) -> list[Any]:
    """Return a field that must be a list."""
    value = require(row, name, place)
    if not isinstance(value, list):
        raise InputError(f"{place}: field {name!r} is {kind(value)}, expected a list")
    return value


def object_field(row: Any, name: str, place: Place) -> dict[str, Any]:
    """Return a field that must be an object."""
    value = require(row, name, place)
    if not isinstance(value, dict):
        raise InputError(f"{place}: field {name!r} is {kind(value)}, expected an object")
    return value


def whole_field(row: Any, name: str, place: Place) -> int | None:
    """Return a field that must be a whole number in the range of int32, None where it is absent."""
    value = lookup(row, name)
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool):
            raise ValueError
        number = int(value) if isinstance(value, (int, str)) else int(float(value))
        if not -(2**31) <= number < 2**31 or (not isinstance(value, str) and number != value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{place}: field {name!r} is {shown(value)}, expected a whole number") from None
    return number


def number_field(row: Any, name: str, place: Place) -> float | None:
    """Return a field that must be a number (true and false are 1 and 0), None where it is absent or NaN."""
    value = lookup(row, name)
    if value is None or value == "":
        return None
    try:
        if not isinstance(value, (int, float, str, Decimal)):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise InputError(f"{place}: field {name!r} is {shown(value)}, expected a number") from None
    return None if math.isnan(number) else number


def label(value: Any, name: str, place: Place) -> str | None:
    """Return an answer or an id as text: text, a number, or a list of one of them; None for an empty one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, (bool, list, dict)) or not isinstance(value, (str, int, float, Decimal)):
        raise InputError(f"{place}: field {name!r} is {kind(value)}, expected text or a number")
    return str(value).strip() or None


def label_field(row: Any, name: str, place: Place) -> str | None:
    """Return a field as :func:`label` does."""
    return label(lookup(row, name), name, place)


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


def numbers(row: Mapping[str, Any], leave_out: Sequence[str] = ()) -> list[str]:
    """Return the names of the fields that hold a number: those that may serve as a score."""
    return [
        name
        for name, value in row.items()
        if name not in leave_out and isinstance(value, (int, float)) and not name.startswith("__")
    ]


def no_score(option: str, place: Place, known: Sequence[str]) -> InputError:
    """Return the error of a ``--score`` field that is not there."""
    there = f"; fields that hold a number: {', '.join(known)}" if known else ""
    return InputError(f"{place}: no field {option!r} for --score{one_line(there)}")


def _fields(row: Any) -> str:
    return f" (fields: {one_line(', '.join(map(str, row)))})" if isinstance(row, Mapping) and row else ""
