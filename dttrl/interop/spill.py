"""Records in any order -> rows question by question: a temporary Arrow file and a few numbers a rollout.

Other tools write rollouts in the order in which they ended, or epoch by epoch. The records go to an
uncompressed Arrow file beside the output as they come. In memory stay five numbers a rollout (40 bytes, and
as many again while they are sorted), and the id, the place, the reference answer and a hash of the prompt of
each question. The file is then memory-mapped and read in the order of (step, query_id, sample_id), a block at
a time.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dttrl.data.row_files import Place
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.sorting import Pieces, sorted_rows
from dttrl.data.tables import table_from_columns
from dttrl.data.validation import one_line, shown
from dttrl.errors import InputError, WorkError
from dttrl.interop.fields import Record

COLUMNS = tuple(name for name in ROLLOUTS.fields.names if name in Record.__slots__)
_FILL = {"prompt": "", "text": "", "finish_reason": "stop", "num_tokens": 0}
"""What stands in a column that may hold no null for the rollouts that lack it."""

_BATCH_ROWS = 1024
_BATCH_BYTES = 8 * 2**20
_BLOCK_BYTES = 16 * 2**20
_NO_STEP = -(2**40)
_SCHEMA = pa.schema([field.with_nullable(True) for field in ROLLOUTS.select(COLUMNS)])


class Spill:
    """Takes records one by one, then gives tables in order; a context manager that removes its file."""

    def __init__(self, path: Path, *, exact_samples: bool = False, same_prompts: bool = True) -> None:
        self._path = path
        self._same_prompts = same_prompts
        self._exact = exact_samples
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._writer: Any = None
        self._starts: list[int] = [0]
        self._bytes = 0
        self.num_rows = 0
        self.questions: dict[str, tuple[int, str | None, int, Place]] = {}
        """By id: its number, reference answer, hash of the prompt and place, as they first came."""
        self._files: list[tuple[Path, str]] = []
        self._keys = {name: array("q") for name in ("step", "question", "file", "sample", "number")}
        self.present: dict[str, int] = dict.fromkeys(COLUMNS, 0)
        """How many rollouts have each entry."""

    def __enter__(self) -> Self:
        try:
            self._writer = pa.ipc.new_file(str(self._path), _SCHEMA)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written ({one_line(error)})") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def add(self, record: Record) -> None:
        """Take one record; raises InputError where prompt or reference contradict an earlier one's."""
        place, prompt = record.place, hash(record.prompt)
        new = (len(self.questions), record.gold, prompt, place)
        question, gold, first_prompt, first = self.questions.setdefault(record.query_id, new)
        if record.gold != gold:
            raise InputError(
                f"{place}: the reference answer of question {record.query_id!r} is"
                f" {shown(record.gold)}, but {shown(gold)} at {first};"
                " questions that differ need ids that differ"
            )
        if self._same_prompts and prompt != first_prompt:
            raise InputError(
                f"{place}: the prompt of question {record.query_id!r} is not that at {first};"
                " questions that differ need ids that differ (import the files one by one)"
            )
        if not self._files or self._files[-1] != (place.path, place.unit):
            self._files.append((place.path, place.unit))
        keys = (
            _NO_STEP if record.step is None else record.step,
            question,
            len(self._files) - 1,
            -1 if record.sample is None else record.sample,
            place.number,
        )
        for column, value in zip(self._keys.values(), keys, strict=True):
            column.append(value)
        self.num_rows += 1
        self._pending.append(record)
        self._pending_bytes += _size(record)
        if len(self._pending) >= _BATCH_ROWS or self._pending_bytes >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        columns = {name: [getattr(record, name) for record in self._pending] for name in COLUMNS}
        try:
            table = table_from_columns(columns, _SCHEMA)
        except InputError as error:
            raise InputError(f"{self._pending[0].place} and after: {error}") from error
        for name in COLUMNS:
            self.present[name] += len(table) - table.column(name).null_count
        try:
            self._writer.write_batch(table.combine_chunks().to_batches()[0])
        except OSError as error:
            raise WorkError(f"{self._path}: cannot be written ({one_line(error)})") from error
        self._starts.append(self._starts[-1] + len(table))
        self._bytes += table.nbytes
        self._pending, self._pending_bytes = [], 0

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def schema(self) -> pa.Schema:
        """Return the columns that any rollout has, and the key; ends the taking of records."""
        self._flush()
        self._close()
        names = [name for name in COLUMNS if self.present[name]]
        return ROLLOUTS.select({*names, "step", "query_id", "sample_id"})

    def tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield all rollouts in order, a block of bounded size at a time, with the columns of ``schema``."""
        order, sample = self._order()
        per_block = int(np.clip(_BLOCK_BYTES / max(self._bytes / max(len(order), 1), 1), 64, 65536))
        starts = np.asarray(self._starts)
        with pa.memory_map(str(self._path)) as source:
            batches = pa.ipc.open_file(source)
            pieces = Pieces(lambda number: pa.Table.from_batches([batches.get_batch(number)]))
            for start in range(0, len(order), per_block):
                rows = order[start : start + per_block]
                piece = np.searchsorted(starts, rows, side="right") - 1
                numbers = pa.array(sample[start : start + per_block], pa.int32())
                yield _finished(pieces.take(piece, rows - starts[piece]), numbers, schema)

    def _order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows in the order of the key, and their sample ids in that order.

        Without exact samples a question's rollouts are numbered from 0: by file, then by the tool's own
        number.
        """
        step, question, file, sample, number = (
            np.frombuffer(column, np.int64) for column in self._keys.values()
        )
        rank = np.empty(len(self.questions), np.int64)
        rank[[self.questions[name][0] for name in sorted(self.questions)]] = np.arange(len(rank))
        if not self._exact:
            order, follows = sorted_rows((step, rank[question], file, sample), unique=2)
            place = np.arange(len(order))
            return order, place - np.maximum.accumulate(np.where(follows, 0, place))
        order, repeats = sorted_rows((step, rank[question], sample), unique=3)
        if repeats.any():
            row = int(order[np.argmax(repeats)])
            path, unit = self._files[int(file[row])]
            name = list(self.questions)[int(question[row])]
            raise InputError(
                f"{Place(path, int(number[row]), unit)}: sample {int(sample[row])} of question {name!r} is"
                " there already; drop one of them, or leave sample= out of --columns to number them in order"
            )
        return order, sample[order]


def _size(record: Record) -> int:
    tokens = sum(
        len(values)
        for values in (record.token_ids, record.token_offset, record.token_confidence, record.token_logprob)
        if values is not None
    )
    return 64 + len(record.text or "") + len(record.prompt or "") + 4 * tokens


def _finished(table: pa.Table, sample: pa.Array, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        column = sample if field.name == "sample_id" else table.column(field.name)
        if field.name in _FILL and column.null_count:
            column = column.fill_null(_FILL[field.name])
        columns.append(column)
    return pa.table(columns, schema=schema)
