"""Finished rollouts of an unfinished generation: small Parquet files in a folder beside the output.

A part holds whole questions or some samples of them, in any order; :meth:`Parts.groups` brings the samples
of a question together again. Parts that were made with other settings or other questions are refused.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dttrl.errors import InputError
from dttrl.questions import Question
from dttrl.rollouts import Rollout, rollouts_to_table
from dttrl.schemas import ROLLOUTS
from dttrl.tables import read_metadata, read_table, write_table

FLUSH_SECONDS = 30.0
"""Work that a killed process may lose."""
FLUSH_TOKENS = 2**21
"""Tokens held before a part is written (about 40 MB of statistics)."""

# Settings that change the samples; parts must agree with the command in all of them.
IDENTITY = (
    "model", "revision", "backend", "dtype", "template", "suffix", "system", "temperature", "top_p", "top_k",
    "max_tokens", "stop", "seed", "k", "keep_tokens",
)  # fmt: skip


class Parts:
    """The folder of finished rollouts beside an output file."""

    def __init__(self, output: Path, metadata: Mapping[str, object], *, keep_tokens: bool) -> None:
        self.folder = parts_folder(output)
        self._metadata = dict(metadata)
        self._keep_tokens = keep_tokens
        self._held: list[Rollout] = []
        self._held_tokens = 0
        self._flushed = time.monotonic()

    def paths(self) -> list[Path]:
        """Return the parts in the order in which they were written."""
        return sorted(self.folder.glob("part-*.parquet"))

    def open(self, questions: Mapping[str, Question]) -> dict[str, set[int]]:
        """Make the folder or check the one that is there; returns the sample ids held of each question."""
        self.folder.mkdir(exist_ok=True)
        held: dict[str, set[int]] = {}
        for path in self.paths():
            self._check_settings(path)
            table = read_table(path, ROLLOUTS, columns=["query_id", "sample_id", "prompt"])
            rows = zip(
                *(table.column(i).to_pylist() for i in ("query_id", "sample_id", "prompt")), strict=True
            )
            for query_id, sample_id, prompt in rows:
                if query_id in questions and questions[query_id].prompt != prompt:
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
            write_table(path, table, ROLLOUTS, metadata=self._metadata)
        self._held, self._held_tokens, self._flushed = [], 0, time.monotonic()

    def groups(self, wanted: Mapping[str, int]) -> Iterator[pa.Table]:
        """Yield the rows of each wanted question in id order: its first samples, up to the wanted number."""
        places: dict[str, list[Path]] = {}
        for path in self.paths():
            for query_id in read_table(path, ROLLOUTS, columns=["query_id"]).column(0).unique().to_pylist():
                places.setdefault(query_id, []).append(path)
        loaded: dict[Path, pa.Table] = {}
        for query_id in sorted(wanted):
            pieces = []
            for path in places.get(query_id, []):
                if path not in loaded:
                    # Questions run in id order, so that a part is mostly used up before the next is read.
                    while len(loaded) >= 4:
                        del loaded[next(iter(loaded))]
                    loaded[path] = read_table(path, ROLLOUTS)
                table = loaded[path]
                keep = pc.and_(
                    pc.equal(table.column("query_id"), query_id),
                    pc.less(table.column("sample_id"), wanted[query_id]),
                )
                pieces.append(table.filter(keep))
            yield _without_repeats(pa.concat_tables(pieces))

    def remove(self) -> None:
        """Delete the parts (after the join, or because the user discards them)."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _check_settings(self, path: Path) -> None:
        found = read_metadata(path)
        for name in IDENTITY:
            if _plain(found.get(name)) != _plain(self._metadata.get(name)):
                raise InputError(
                    f"{self.folder}: earlier rollouts were sampled with {name} {found.get(name)!r}, "
                    f"now it is {self._metadata.get(name)!r}; use the same settings, or "
                    "--overwrite to discard them"
                )


def parts_folder(output: Path) -> Path:
    """Where the parts of ``output`` are kept until it is complete."""
    return output.with_name(f"{output.name}.parts")


def _without_repeats(table: pa.Table) -> pa.Table:
    """Sort by sample id and keep the first of each: two processes may have sampled the same one."""
    table = table.sort_by("sample_id")
    ids = table.column("sample_id").to_pylist()
    return table.take([i for i, sample_id in enumerate(ids) if i == 0 or sample_id != ids[i - 1]])


def _plain(value: object) -> object:
    """Compare values as JSON would hold them: a tuple is a list."""
    return list(value) if isinstance(value, (list, tuple)) else value
