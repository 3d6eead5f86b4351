"""Rollouts: completions with their per-token statistics, in memory and as rows of a table.

``rollouts_to_table`` and ``table_to_rollouts`` are inverse to each other, but for the text (sanitised) and
the token ids (kept on request).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dttrl.data.questions import Question
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import table_from_columns
from dttrl.errors import InputError

FinishReason = Literal["stop", "length", "abort"]

_FINISH_REASONS: tuple[str, ...] = get_args(FinishReason)
_TOKEN_COLUMNS = {
    "token_ids": np.dtype(np.int32),
    "token_offset": np.dtype(np.int32),
    "token_confidence": np.dtype(np.float32),
    "token_logprob": np.dtype(np.float32),
    "token_entropy": np.dtype(np.float32),
    "token_self_certainty": np.dtype(np.float32),
}


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One completion of one question.

    Token arrays have T entries, one a sampled token, or none where the number was not recorded (imported
    rollouts, token ids that were not kept). ``token_offset`` is the character of ``text`` at which a token
    starts (``len(text)`` for end and special tokens); the statistics are in nats, before temperature;
    ``token_self_certainty`` is exact, over the full vocabulary. ``step`` is None offline. Equal when all
    fields are; NaN equals NaN.
    """

    query_id: str
    sample_id: int
    text: str
    finish_reason: FinishReason
    token_ids: NDArray[np.int32]
    token_offset: NDArray[np.int32]
    token_confidence: NDArray[np.float32]
    token_logprob: NDArray[np.float32]
    token_entropy: NDArray[np.float32]
    token_self_certainty: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    step: int | None = None

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in _TOKEN_COLUMNS} - {0}
        if len(lengths) > 1:
            raise InputError(
                f"rollout {self.query_id!r}/{self.sample_id}: token arrays of lengths"
                f" {sorted(lengths)}; all must be equal or empty"
            )

    @property
    def num_tokens(self) -> int:
        """T, the number of sampled tokens; 0 where no token array was recorded."""
        return max(len(getattr(self, name)) for name in _TOKEN_COLUMNS)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rollout):
            return NotImplemented
        return all(_same(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __hash__(self) -> int:
        return hash((self.step, self.query_id, self.sample_id))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    return bool(a == b)


def rollouts_to_table(
    rollouts: Sequence[Rollout], questions: Mapping[str, Question], *, keep_tokens: bool
) -> pa.Table:
    """Return the rollouts as rows of ROLLOUTS, in their order, with prompt, gold and source of the question.

    ``questions`` maps query_id to the question. Token ids go in only with ``keep_tokens``; an array that was
    not recorded is null. Raises InputError for a rollout whose question is absent.
    """
    names = ("step", "query_id", "sample_id", "text", "finish_reason", "num_tokens")
    columns: dict[str, list[Any]] = {name: [getattr(each, name) for each in rollouts] for name in names}
    asked = [_question(rollout, questions) for rollout in rollouts]
    columns["source"] = [question.source for question in asked]
    columns["prompt"] = [question.prompt for question in asked]
    columns["gold"] = [question.answer for question in asked]
    for name in _TOKEN_COLUMNS:
        if name != "token_ids" or keep_tokens:
            columns[name] = [_recorded(rollout, name) for rollout in rollouts]
    return table_from_columns(columns, ROLLOUTS.select(columns))


def _question(rollout: Rollout, questions: Mapping[str, Question]) -> Question:
    question = questions.get(rollout.query_id)
    if question is None:
        raise InputError(f"rollout {rollout.query_id!r}/{rollout.sample_id}: no question has this id")
    return question


def _recorded(rollout: Rollout, name: str) -> NDArray[Any] | None:
    values: NDArray[Any] = getattr(rollout, name)
    if not len(values) and rollout.num_tokens:
        return None
    return np.asarray(values, dtype=_TOKEN_COLUMNS[name])


def table_to_rollouts(table: pa.Table) -> list[Rollout]:
    """Return the rows of a ROLLOUTS table (a group's, say) as rollouts, in their order.

    Needs query_id, sample_id and text. An absent or null token array is empty, an absent step is None, an
    absent finish reason is "stop". Null entries of a token array become NaN. The arrays are read-only views.
    """
    columns: dict[str, list[Any]] = dict.fromkeys(("step", "finish_reason"), [None] * len(table))
    for name in ("query_id", "sample_id", "text", "step", "finish_reason"):
        if name in table.column_names:
            columns[name] = table.column(name).to_pylist()
        elif name not in columns:
            raise InputError(
                f"rollouts need the column {name!r}; run `dttrl generate`, or import them with it"
            )
    tokens = {name: _token_arrays(table, name) for name in _TOKEN_COLUMNS}
    reasons = [reason or "stop" for reason in columns["finish_reason"]]
    for row, reason in enumerate(reasons):
        if reason not in _FINISH_REASONS:
            raise InputError(
                f"column 'finish_reason', row {row}: {reason!r}, expected {', '.join(_FINISH_REASONS)}"
            )
    return [
        Rollout(
            query_id=columns["query_id"][row],
            sample_id=columns["sample_id"][row],
            text=columns["text"][row] or "",
            finish_reason=cast(FinishReason, reason),
            step=columns["step"][row],
            **{name: arrays[row] for name, arrays in tokens.items()},
        )
        for row, reason in enumerate(reasons)
    ]


def _token_arrays(table: pa.Table, name: str) -> list[NDArray[Any]]:
    """Return one array a row; empty where the column is absent or the entry null."""
    kind = _TOKEN_COLUMNS[name]
    empty = np.empty(0, kind)
    if name not in table.column_names:
        return [empty] * len(table)
    result: list[NDArray[Any]] = []
    for chunk in table.column(name).chunks:
        values = chunk.values
        if values.null_count and kind.kind == "i":
            raise InputError(f"column {name!r}: null inside a list; drop the column or fill it in")
        flat = values.to_numpy(zero_copy_only=False).astype(kind, copy=False)
        offsets = chunk.offsets.to_numpy()
        present = chunk.is_valid().to_numpy(zero_copy_only=False)
        result.extend(
            flat[start:stop] if there else empty
            for start, stop, there in zip(offsets[:-1], offsets[1:], present, strict=True)
        )
    return result
