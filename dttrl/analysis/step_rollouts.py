"""The saved rollouts of a run, step by step: confidences, answers, and which are right.

Axis letters: B questions of a step, G rollouts of a question (equal within a run), N = B·G.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dttrl.analysis.runs import rollout_files
from dttrl.answers.grading import Grader
from dttrl.scoring import SCORED_COLUMNS, read_scored, source_of, stored_kind
from dttrl.tables import RolloutFiles


@dataclass(frozen=True)
class StepQuestion:
    """One question of one step; ``correct_G`` is None without a gold answer, ``reward_G`` before training."""

    step: int
    query_id: str
    source: str | None
    confidence_G: NDArray[np.float64]
    correct_G: NDArray[np.bool_] | None
    reward_G: NDArray[np.float64] | None
    table: pa.Table


def step_questions(run: Path, *, columns: Sequence[str] = (), every: int = 1) -> Iterator[list[StepQuestion]]:
    """Yield the questions of each kept step, or every so many; ``columns`` come besides the scores.

    Grading follows the kind that the file was scored for; the classes stored in the file are not redone.
    """
    for path in rollout_files(run)[::every]:
        files = RolloutFiles([path])
        files.require("answer", "confidence")
        wanted = dict.fromkeys([*SCORED_COLUMNS, "reward", *columns])
        with Grader(kind=stored_kind(files.metadata)) as grader:
            read = [name for name in wanted if name in files.column_names]
            yield [
                _question(group.step or 0, group.query_id, group.table, grader)
                for group in files.groups(read)
            ]


def _question(step: int, query_id: str, table: pa.Table, grader: Grader) -> StepQuestion:
    scored = read_scored(table, query_id=query_id, grader=grader)
    correct_G = None
    if scored.gold_class is not None:
        correct_G = (scored.class_G == scored.gold_class) & (scored.class_G >= 0)
    reward_G = None
    if "reward" in table.column_names and not table.column("reward").null_count:
        reward_G = table.column("reward").to_numpy().astype(np.float64)
    return StepQuestion(step, query_id, source_of(table), scored.confidence_G, correct_G, reward_G, table)
