"""What training runs left behind: settings, metrics, labels, evaluations, history and rollouts, by run.

A run is named by its folder, or ``PACK#NAME`` in a *pack*: a folder of one Parquet file per table
(:func:`pack_runs`) that holds the records of many runs under the names of their folders, and neither
rollouts nor weights. Everything in ``analysis`` reads runs through these functions.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import ValidationError

from dttrl.analysis.accuracy import QuestionScore, evaluation_scores
from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import EVALUATIONS, HISTORY, LABELS, TableSchema
from dttrl.data.tables import read_table, write_table
from dttrl.data.validation import one_line
from dttrl.errors import InputError
from dttrl.method.scored import Scored
from dttrl.scoring.score import stored_kind
from dttrl.scoring.scored_files import WHOLE_FILE, read_scored
from dttrl.settings.commands import LENIENT, TrainConfig
from dttrl.settings.files import first_problem

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
_NAME = pa.field("run", pa.string(), False)
_CONFIGS = TableSchema(
    "configs", pa.schema([_NAME, ("config", pa.string())]), frozenset({"run", "config"}), ("run",)
)
_METRICS = TableSchema(  # which metrics there are besides the step is up to the runs
    "metrics", pa.schema([_NAME, ("step", pa.int64())]), frozenset({"run", "step"}), ("run", "step")
)


def is_run(path: Path) -> bool:
    """Whether ``path`` names a training run: its folder, or one in a pack."""
    return (path / CONFIG).is_file() or _packed(path) is not None


def expand_runs(paths: Iterable[Path]) -> list[Path]:
    """Return the runs that are named, each once: ``PACK`` is all of a pack, ``PACK#PATTERN`` what matches.

    A pattern has the ``*``, ``?`` and ``[]`` of a shell. What is no pack stays as it is. Raises InputError
    for a pattern that no run matches.
    """
    found: list[Path] = []
    for path in paths:
        pack, pattern = _packed(path) or (path, "*")
        if not _is_pack(pack):
            found.append(path)
            continue
        names = _pack_table(pack, _CONFIGS).column("run").to_pylist()
        matching = fnmatch.filter(names, pattern)
        if not matching:
            raise InputError(f"{path}: the pack has no such run; it has {one_line(', '.join(names))}")
        found += [Path(f"{pack}#{name}") for name in matching]
    return list(dict.fromkeys(found))


def run_files(paths: Iterable[Path]) -> list[Path]:
    """Return what may not be written over when these runs are read: the folders, and the files of packs."""
    packs = [(path, _packed(path) or (path, "")) for path in paths]
    return [
        file for path, (pack, _) in packs for file in (pack.glob("*.parquet") if _is_pack(pack) else [path])
    ]


def config_text(run: Path) -> str:
    """Return the ``config.yaml`` of a run; raises InputError for what is no run."""
    packed = _packed(run)
    if packed is not None:
        rows = _rows(packed, _CONFIGS)
        if rows is None:
            raise InputError(f"{run}: the pack has no such run")
        return str(rows.column("config")[0].as_py())
    if run.is_file():
        raise InputError(f"{run}: is a file, not a run folder; name the folder that dttrl train made")
    if not run.is_dir():
        raise InputError(f"{run}: no such run folder")
    if not (run / CONFIG).is_file():
        raise InputError(f"{run}: not a run folder, it has no {CONFIG}")
    try:
        return (run / CONFIG).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{run / CONFIG}: not readable as YAML ({one_line(error)})") from error


def read_config(run: Path) -> dict[str, Any]:
    """Return the resolved settings of a run as plain data; those younger than the run at their defaults."""
    try:
        settings = yaml.safe_load(config_text(run))
    except yaml.YAMLError as error:
        raise InputError(f"{run / CONFIG}: not readable as YAML ({one_line(error)})") from error
    if not isinstance(settings, dict):
        raise InputError(f"{run / CONFIG}: expected a mapping of settings, found {type(settings).__name__}")
    unnamed = {"model": "unknown", "questions": "unknown"}
    try:
        found = TrainConfig.model_validate(unnamed | settings, context={LENIENT: True})
    except ValidationError as error:
        raise InputError(f"{run / CONFIG}: {first_problem(error)}") from None
    return found.flat()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return one record per step, ascending; a step's last record counts, a cut last line is left out."""
    packed = _packed(run)
    if packed is not None:
        rows = _rows(packed, _METRICS)
        known = [] if rows is None else rows.to_pylist()
        return [{name: value for name, value in row.items() if value is not None} for row in known]
    path = run / METRICS
    if not path.is_file():
        return []
    records: dict[int, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            records[int(record["step"])] = record
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):  # the run was killed, or is writing it now
                break
            raise InputError(f"{path}: line {number} is not a JSON object with a step") from error
    return [records[step] for step in sorted(records)]


def read_records(run: Path, stage: TableSchema, *, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Return the LABELS, EVALUATIONS or HISTORY of a run; None where it has none."""
    packed = _packed(run)
    if packed is not None:
        rows = _rows(packed, _with_run(stage))
        return rows if rows is None or columns is None else rows.select(list(columns))
    path = run / f"{stage.name}.parquet"
    return read_table(path, stage, columns=columns) if path.is_file() else None


def read_scores(run: Path) -> dict[str, dict[int, list[QuestionScore]]]:
    """Return the evaluated questions of a run by split and ascending step; empty without gold answers."""
    table = read_records(run, EVALUATIONS)
    return {} if table is None else evaluation_scores(table)


def rollout_files(run: Path) -> list[Path]:
    """Return the rollouts of a run, a file per step, ascending; [] where it kept none."""
    return sorted((run / "rollouts").glob("*.parquet"))


def scored_steps(run: Path, *, columns: Sequence[str] = (), every: int = 1) -> Iterator[Scored]:
    """Yield the scores of each kept step, or every so many; ``columns`` come in ``rows`` besides them.

    Grading follows the kind that the file was scored for; the classes stored in the file are not redone.
    """
    for path in rollout_files(run)[::every]:
        files = RolloutFiles([path])
        files.require("answer", "confidence")
        with Grader(kind=stored_kind(files.metadata)) as grader:
            yield from read_scored(files, grader=grader, columns=columns, rows=WHOLE_FILE)


def pack_runs(runs: Sequence[Path], pack: Path) -> None:
    """Write the records of run folders into a pack, in the order of the runs; one that is there is replaced.

    Every run keeps its folder's name. Null metrics are left out, as reading takes both for unknown.
    """
    metrics = [{"run": run.name} | record for run in runs for record in read_metrics(run)]
    names = dict.fromkeys(name for record in metrics for name in record)
    measured = pa.table({name: [record.get(name) for record in metrics] for name in names})
    texts = [{"run": run.name, "config": config_text(run)} for run in runs]
    tables = [
        (_CONFIGS, [pa.Table.from_pylist(texts, schema=_CONFIGS.fields)]),
        (replace(_METRICS, fields=measured.schema), [measured]),
    ]
    for stage in (LABELS, EVALUATIONS, HISTORY):
        parts = [(run.name, read_records(run, stage)) for run in runs]
        named = [part.add_column(0, _NAME, [[name] * len(part)]) for name, part in parts if part is not None]
        tables.append((_with_run(stage), named))
    for stage, found in tables:
        if found:
            path = pack / f"{stage.name}.parquet"
            write_table(path, pa.concat_tables(found), stage, metadata={}, overwrite=True)


def _is_pack(path: Path) -> bool:
    return (path / "configs.parquet").is_file()


def _packed(run: Path) -> tuple[Path, str] | None:
    """Return the pack and what stands after its ``#``; None for a folder, whatever its name."""
    pack, mark, name = str(run).rpartition("#")
    return (Path(pack), name) if mark and not run.exists() and _is_pack(Path(pack)) else None


def _with_run(stage: TableSchema) -> TableSchema:
    """Return the stage as it is in a pack: the run's name is its first column and part of its key."""
    schema = pa.schema([_NAME, *stage.fields], metadata=stage.fields.metadata)
    return TableSchema(stage.name, schema, stage.required | {"run"}, ("run", *stage.key))


def _rows(packed: tuple[Path, str], stage: TableSchema) -> pa.Table | None:
    """Return the rows of one run in a pack without its name; None where there are none."""
    pack, name = packed
    if not (pack / f"{stage.name}.parquet").is_file():
        return None
    table = _pack_table(pack, stage)
    rows = table.filter(pc.equal(table.column("run"), name))
    return rows.drop_columns("run") if rows.num_rows else None


def _pack_table(pack: Path, stage: TableSchema) -> pa.Table:
    path = pack / f"{stage.name}.parquet"
    return _read_once(path, stage, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read_once(path: Path, stage: TableSchema, changed: int) -> pa.Table:
    """Read and check a table of a pack once for all of its runs; ``changed`` is when it was written."""
    return read_table(path, stage)
