"""The saved rollouts of a run, step by step: confidences, answers, and which are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dttrl.analysis.runs import rollout_files
from dttrl.answers.grading import Grader
from dttrl.scored import Scored
from dttrl.scored_files import WHOLE_FILE, read_scored
from dttrl.scoring import stored_kind
from dttrl.tables import RolloutFiles


def scored_steps(run: Path, *, columns: Sequence[str] = (), every: int = 1) -> Iterator[Scored]:
    """Yield each kept step, or every so many; ``columns`` come in ``rows`` besides the scores.

    Grading follows the kind that the file was scored for; the classes stored in the file are not redone.
    """
    for path in rollout_files(run)[::every]:
        files = RolloutFiles([path])
        files.require("answer", "confidence")
        with Grader(kind=stored_kind(files.metadata)) as grader:
            yield from read_scored(files, grader=grader, columns=columns, rows=WHOLE_FILE)
