"""Finished rollouts of an unfinished generation: small Parquet files in a folder beside the output.

A part holds whole questions or some samples of them, sorted by question and in small row groups, so that a
question costs its own rows and little more when :func:`joined` brings its samples together again. Parts that
were made with other settings or other questions are refused, and one process at a time works in the folder.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dttrl.data.outputs import locked
from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout, rollouts_to_table, table_to_rollouts
from dttrl.data.schemas import KEY_COLUMNS, ROLLOUTS
from dttrl.data.sorting import Pieces, sorted_rows
from dttrl.data.tables import TableWriter, read_metadata, read_table, sanitize
from dttrl.data.validation import conform, file_schema, open_parquet
from dttrl.errors import InputError

FLUSH_SECONDS = 30.0
"""A part is written when a question finishes this long after the last part."""
FLUSH_TOKENS = 2**21
"""Tokens held before a part is written (about 40 MB of statistics)."""
ROW_GROUP_BYTES = 2**20
"""What is read at most, beside the question's own rows, to bring a question together."""

# Settings that change the samples; parts must agree with the command in all of them.
IDENTITY = (
    "model", "model_files", "revision", "backend", "dtype", "template", "suffix", "system", "temperature",
    "top_p", "top_k", "max_tokens", "stop", "seed", "k", "entropy", "keep_tokens",
)  # fmt: skip


class Parts:
    """The folder of finished rollouts beside an output file; use it as a context manager.

    The folder is this process's own within the block: InputError on entry where another works in it. A folder
    without parts is removed at the end. ``metadata`` goes into every part.
    """

    def __init__(self, output: Path, metadata: Mapping[str, object], *, keep_tokens: bool) -> None:
        self.folder = parts_folder(output)
        self._lock = contextlib.ExitStack()
        self._metadata = dict(metadata)
        self._keep_tokens = keep_tokens
        self._held: list[Rollout] = []
        self._held_tokens = 0
        self._flushed = time.monotonic()

    def __enter__(self) -> Self:
        self._lock.enter_context(locked(self.folder / "lock", self.folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()
        with contextlib.suppress(OSError):  # not empty: there are parts
            self.folder.rmdir()

    def paths(self) -> list[Path]:
        """Return the parts in the order in which they were written."""
        return sorted(self.folder.glob("part-*.parquet"))

    def open(self, questions: Mapping[str, Question]) -> dict[str, set[int]]:
        """Check the parts that are there; returns the sample ids held of each question."""
        held: dict[str, set[int]] = {}
        for path in self.paths():
            self._check_settings(path)
            table = read_table(path, ROLLOUTS, columns=["query_id", "sample_id", "prompt"])
            rows = zip(
                *(table.column(i).to_pylist() for i in ("query_id", "sample_id", "prompt")), strict=True
            )
            for query_id, sample_id, prompt in rows:
                if query_id in questions and sanitize(questions[query_id].prompt) != prompt:
                    raise InputError(
                        f"{path}: question {query_id!r} has another text than in the question file; "
                        f"use the same questions, or --overwrite to discard {self.folder}"
                    )
                held.setdefault(query_id, set()).add(sample_id)
        return held

    def add(self, rollouts: Sequence[Rollout], questions: Mapping[str, Question]) -> None:
        """Keep finished rollouts; writes a part when enough have gathered or time has passed."""
        self._held += rollouts
        self._held_tokens += sum(rollout.num_tokens for rollout in rollouts)
        if self._held_tokens >= FLUSH_TOKENS or time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush(questions)

    def flush(self, questions: Mapping[str, Question]) -> None:
        """Write what is held as the next part."""
        if self._held:
            ordered = sorted(self._held, key=lambda rollout: (rollout.query_id, rollout.sample_id))
            table = rollouts_to_table(ordered, questions, keep_tokens=self._keep_tokens)
            paths = self.paths()
            number = int(paths[-1].stem.split("-")[1]) + 1 if paths else 0
            path = self.folder / f"part-{number:06d}.parquet"
            with TableWriter(
                path, table.schema, metadata=self._metadata, row_group_bytes=ROW_GROUP_BYTES
            ) as writer:
                writer.write(table)
        self._held, self._held_tokens, self._flushed = [], 0, time.monotonic()

    def rollouts(self, questions: Mapping[str, Question]) -> Iterator[Rollout]:
        """Yield what the parts hold of these questions, part by part."""
        for path in self.paths():
            with open_parquet(path) as parquet:
                for group in range(parquet.num_row_groups):
                    for rollout in table_to_rollouts(read_row_group(parquet, path, group)):
                        if rollout.query_id in questions:
                            yield rollout

    def groups(self, questions: Mapping[str, Question], samples: Mapping[str, int]) -> Iterator[pa.Table]:
        """Yield the first ``samples`` rows of each question in id order, with its gold and source of now.

        Answers may be corrected while the work is interrupted: they change no sample.
        """
        for table in joined(self.paths(), samples):
            question = questions[table.column("query_id")[0].as_py()]
            for name, value in (("source", question.source), ("gold", question.answer)):
                text = None if value is None else sanitize(value)
                field = table.schema.field(name)
                column = pa.array([text] * len(table), field.type)
                table = table.set_column(table.schema.get_field_index(name), field, column)
            yield table

    def discard(self) -> None:
        """Delete the parts because the user asked for other ones."""
        for path in self.paths():
            path.unlink()

    def remove(self) -> None:
        """Delete the folder after the join."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check_settings(self, path: Path) -> None:
        found = read_metadata(path)
        for name in IDENTITY:
            if found.get(name) != self._metadata.get(name):
                was, now = f"{name} {found.get(name)!r}", f"it is {self._metadata.get(name)!r}"
                if name == "model_files":
                    was, now = f"other files of the model {found.get('model')!r}", "they have changed"
                raise InputError(
                    f"{self.folder}: earlier rollouts were sampled with {was}, now {now}; use the same "
                    "settings, or --overwrite to discard them"
                )


def parts_folder(output: Path) -> Path:
    """Where the parts of ``output`` are kept until it is complete."""
    return output.with_name(f"{output.name}.parts")


def joined(paths: Sequence[Path], wanted: Mapping[str, int]) -> Iterator[pa.Table]:
    """Yield the rows of each wanted question, in id order: samples 0 to the wanted number, one row each.

    Where two parts hold the same sample, the row of the earlier part is taken. Raises InputError for a sample
    that no part holds and a part that is damaged.
    """
    ids = sorted(wanted)
    known, wanted_Q = pa.array(ids, pa.string()), np.array([wanted[query_id] for query_id in ids], np.int64)
    groups: list[tuple[Path, int]] = []
    found = [np.empty((4, 0), np.int64)]  # rank of the question, sample, number of the row group, row in it
    for path in paths:
        with open_parquet(path) as parquet:
            for group in range(parquet.num_row_groups):
                table = read_row_group(parquet, path, group, KEY_COLUMNS[1:])
                rank = pc.fill_null(pc.index_in(table.column("query_id"), value_set=known), -1).to_numpy()
                sample = table.column("sample_id").to_numpy()
                rows = np.flatnonzero((rank >= 0) & (sample < wanted_Q[rank]))
                keys = [rank[rows], sample[rows], np.full(len(rows), len(groups)), rows]
                found.append(np.stack(keys).astype(np.int64))
                groups.append((path, group))
    index = np.concatenate(found, axis=1)
    order, repeats = sorted_rows((index[0], index[1]), unique=2)
    index = index[:, order[~repeats]]

    def read(number: int) -> pa.Table:
        path, group = groups[number]
        with open_parquet(path) as parquet:
            return read_row_group(parquet, path, group)

    pieces = Pieces(read)
    bounds = np.searchsorted(index[0], np.arange(len(ids) + 1))
    for query_id, start, stop in zip(ids, bounds[:-1], bounds[1:], strict=True):
        if stop - start != wanted[query_id]:
            where = paths[0].parent if paths else "no parts"
            raise InputError(
                f"{where}: question {query_id!r} has {stop - start} samples of {wanted[query_id]}; "
                "run the same command again"
            )
        if start < stop:
            yield pieces.take(index[2, start:stop], index[3, start:stop])


def read_row_group(parquet: Any, path: Path, group: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Read one row group of a part; raises InputError for a damaged one."""
    schema = file_schema(parquet.schema_arrow, path, ROLLOUTS, columns)
    return conform(parquet.read_row_group(group, columns=schema.names), schema, path)
