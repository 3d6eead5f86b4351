"""Files of other tools given straight to a command: recognised, imported, scored where needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dttrl.answers.grading import Grader
from dttrl.answers.kinds import AUTO
from dttrl.data.row_files import fields_of, is_parquet
from dttrl.interop.formats import Format, recognise
from dttrl.interop.importing import import_files
from dttrl.method.confidence import Measure
from dttrl.scoring.score import score_files
from dttrl.settings.sections import Scoring


def foreign_format(path: Path) -> Format | None:
    """Return the format of another tool's file or folder; None for ours and for what nobody knows.

    A folder is judged by its first file that is ours or is recognised.
    """
    if not path.is_dir():
        return None if _ours(path) else recognise(path)
    if (path / "rollouts").is_dir():
        return None
    for file in sorted(path.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            if _ours(file):
                return None
            entry = recognise(file)
            if entry is not None:
                return entry
    return None


def _ours(path: Path) -> bool:
    return is_parquet(path) and {"query_id", "sample_id"} <= fields_of(path)


def accept(
    paths: Sequence[Path], folder: Path, *, scored: bool, kind: str | None = None
) -> tuple[list[Path], list[str]]:
    """Import other tools' files among ``paths`` into ``folder``; ours stay as they are.

    Returns the files of ours that stand for what was given, and what is to be said about it. Files of one
    format become one. With ``scored`` they are also scored (last step; by log-probability where there are no
    top entries) unless they hold answers and no token statistics. Raises InputError as the import does.
    """
    formats = {path: foreign_format(path) for path in paths}
    accepted, notes = [path for path in paths if formats[path] is None], []
    for entry in dict.fromkeys(entry for entry in formats.values() if entry is not None):
        given = [path for path in paths if formats[path] is entry]
        target = folder / f"{entry.name}.parquet"
        summary = import_files(entry, given, target)
        shown = f"{given[0]}" + (f" and {len(given) - 1} more" if len(given) > 1 else "")
        notes += [f"{shown}: read as {entry.name}; {summary.possible}", *summary.notes]
        measure = _measure(summary.entries)
        if scored and "text" in summary.columns and ("answer" not in summary.columns or measure is not None):
            imported, target = target, folder / f"{entry.name}-scored.parquet"
            with Grader(kind=kind or AUTO) as grader:
                scoring = Scoring(measure=measure or "topk")
                score_files([imported], target, scoring, grader)
        accepted.append(target)
    return accepted, notes


def _measure(entries: dict[str, int]) -> Measure | None:
    """Return the measure that the token statistics allow, None without any."""
    if entries.get("token_confidence"):
        return "topk"
    return "perplexity" if entries.get("token_logprob") else None
