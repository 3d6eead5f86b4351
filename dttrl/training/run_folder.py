"""The run folder: what a run writes while it goes on, and how it is cut back when it is resumed.

``metrics.jsonl`` grows by a line a step; ``labels.parquet``, ``evaluations.parquet`` and ``history.parquet``
are replaced whole and atomically, as they stay small; each step's rollouts are a file of their own. Records
are written before the checkpoint that covers them, so a checkpoint never knows of a step that the records
lack, and :meth:`RunFolder.rewind` drops whatever is newer than the checkpoint.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dttrl.data.outputs import replacing
from dttrl.data.questions import Question
from dttrl.data.schemas import EVALUATIONS, HISTORY, LABELS, ROLLOUTS, TableSchema
from dttrl.data.tables import read_table, write_table
from dttrl.errors import InputError, OutputExistsError, WorkError

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
LOCK = ".lock"
QUESTIONS = "questions"
TABLES: dict[str, TableSchema] = {"labels": LABELS, "evaluations": EVALUATIONS, "history": HISTORY}


class RunFolder:
    """The files of one run. ``metadata`` goes into every Parquet file."""

    def __init__(self, path: Path, metadata: Mapping[str, object]) -> None:
        self.path = path
        self._metadata = dict(metadata)
        self._tables: dict[str, list[pa.Table]] = {name: [] for name in TABLES}

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    def rollouts_path(self, step: int) -> Path:
        """File of one step's rollouts."""
        return self.path / "rollouts" / f"step-{step:06d}.parquet"

    def write_rollouts(self, step: int, table: pa.Table) -> None:
        """Write the rollouts of a step."""
        path = self.rollouts_path(step)
        path.parent.mkdir(exist_ok=True)
        write_table(path, table, ROLLOUTS, metadata=self._metadata, overwrite=True)

    def add_table(self, name: str, table: pa.Table) -> None:
        """Append rows to ``labels``, ``evaluations`` or ``history``; :meth:`flush` writes them."""
        self._tables[name].append(table)

    def table(self, name: str) -> pa.Table | None:
        """Return the rows of a table so far, flushed or not; None where there are none."""
        parts = self._tables[name]
        return pa.concat_tables(parts) if parts else None

    def flush(self, *names: str) -> None:
        """Replace the named tables (all by default) by what has been added so far."""
        for name in names or TABLES:
            parts = self._tables[name]
            if parts:
                self._tables[name] = [pa.concat_tables(parts)]
                write_table(
                    self.path / f"{name}.parquet",
                    self._tables[name][0],
                    TABLES[name],
                    metadata=self._metadata,
                    overwrite=True,
                )

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``; NaN and infinity, which JSON lacks, become null."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(_json_line(metrics))

    def rewind(self, step: int) -> None:
        """Drop every record of a step after ``step`` (-1: all records) and take over the others."""
        for name, stage in TABLES.items():
            path = self.path / f"{name}.parquet"
            if path.exists():
                table = read_table(path, stage)
                kept = table.filter(pc.less_equal(table["step"], step)).combine_chunks()
                self._tables[name] = [kept] if kept.num_rows else []
                if not kept.num_rows:
                    path.unlink()
        self.flush()
        metrics = self.path / METRICS
        if metrics.exists():
            lines = [line for line in read_metrics(metrics) if line.get("step", step + 1) <= step]
            replace_text(metrics, "".join(map(_json_line, lines)))
        for path in (self.path / "rollouts").glob("step-*.parquet"):
            if path.stem.removeprefix("step-").isdigit() and int(path.stem.removeprefix("step-")) > step:
                path.unlink()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a ``metrics.jsonl``, none where there is no file."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the last line of a killed process may be cut, and so may one that is being written
        if isinstance(record, dict):
            yield record


def check_run(path: Path, *, overwrite: bool) -> None:
    """Raise :class:`OutputExistsError` where a run may not be made.

    That is where the folder exists and ``overwrite`` is not set. With it, only a folder that is a run (or
    empty) may be replaced: anything else is refused.
    """
    if path.exists() and not path.is_dir():
        raise OutputExistsError(f"{path}: is a file; name another run folder with --run")
    if path.exists() and any(path.iterdir()):
        if not overwrite:
            raise OutputExistsError(
                f"{path}: the run folder exists; use --resume {path} to go on, --overwrite to start again, "
                "or another --run"
            )
        if not (path / CONFIG).is_file():
            raise OutputExistsError(f"{path}: is not a run folder (no {CONFIG}); it will not be overwritten")


def check_inputs(run: Path, inputs: Mapping[str, Path]) -> None:
    """Raise :class:`InputError` for an input that lies in the run folder and would be deleted with it."""
    for name, path in inputs.items():
        if path.exists() and path.resolve().is_relative_to(run.resolve()):
            raise InputError(
                f"{path}: the {name} lies in the run folder {run}, which --overwrite deletes; "
                "name another run folder with --run"
            )


def create_run(
    path: Path, config_yaml: str, splits: Mapping[str, Sequence[Question]], *, overwrite: bool
) -> None:
    """Make the run folder with its configuration and a copy of its questions, from which it is resumed.

    Raises what :func:`check_run` raises.
    """
    check_run(path, overwrite=overwrite)
    try:
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkError(f"{path}: cannot make the run folder ({error.strerror})") from None
    (path / QUESTIONS).mkdir()
    for split, questions in splits.items():
        lines = (json.dumps(asdict(question)) + "\n" for question in questions)
        replace_text(path / QUESTIONS / f"{split}.jsonl", "".join(lines))
    replace_text(path / CONFIG, config_yaml)


def read_questions_of(path: Path) -> dict[str, list[Question]]:
    """Return the questions of a run by split, as they were when it was made."""
    splits = {}
    for file in sorted((path / QUESTIONS).glob("*.jsonl"), reverse=True):  # train before heldout
        try:
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            splits[file.stem] = [Question(**row) for row in rows]
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{file}: the run's questions cannot be read ({error})") from None
    if not splits.get("train"):
        raise InputError(f"{path}: the run has no {QUESTIONS}/train.jsonl and cannot be resumed")
    return splits


def find_config(path: Path) -> Path:
    """Return the configuration file of a run; raises :class:`InputError` where there is no run."""
    config = path / CONFIG
    if not config.is_file():
        raise InputError(f"{path}: is not a run folder (no {CONFIG})")
    return config


def replace_text(path: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _json_line(record: Mapping[str, Any]) -> str:
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
    return json.dumps(plain, ensure_ascii=False) + "\n"
