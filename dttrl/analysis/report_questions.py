"""The report's tables of questions: how each was answered before and after, and what it was trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dttrl.analysis.accuracy import QuestionScore
from dttrl.analysis.runs import read_scores
from dttrl.data.questions import read_questions
from dttrl.errors import InputError

QuestionTable = tuple[str, list[str], list[list[str]]]
"""Split, header and rows; the cells are plain text."""

_PROMPT_LENGTH = 80
_QUESTION_FILES = {"train": "questions", "heldout": "heldout"}
_COLUMNS = ("prompt_column", "answer_column", "id_column", "source_column")


def question_tables(
    run: Path, settings: Mapping[str, Any], labels: pa.Table | None
) -> Iterator[QuestionTable]:
    """Yield a table for each evaluated split; without gold answers one of the questions that were trained on.

    ``labels`` is the run's LABELS table. Prompts come from the run's question files and are left out where a
    file is gone or has another answer for the question than the run had.
    """
    scores = read_scores(run)
    last_labels = _last_labels(labels)
    for split, by_step in scores.items():
        steps = list(by_step)
        before, after = by_step[steps[0]], by_step[steps[-1]]
        prompts = _prompts(settings, split, {score.query_id: score.gold for score in after})
        first = {score.query_id: score for score in before}
        columns = [("gold", [_shortened(score.gold or "-") for score in after])]
        if last_labels and split == "train":
            columns.append(
                ("last pseudo-label", [_label(last_labels.get(score.query_id)) for score in after])
            )
        columns += [
            (f"right, step {steps[0]}", [_share(first.get(score.query_id)) for score in after]),
            (f"right, step {steps[-1]}", [_share(score) for score in after]),
            (f"majority ratio, step {steps[-1]}", [_ratio(score.majority_ratio) for score in after]),
        ]
        yield split, *_table([score.query_id for score in after], prompts, columns)
    if not scores and last_labels:
        rows = dict(sorted(last_labels.items()))
        columns = [
            ("last pseudo-label", [_label(row) for row in rows.values()]),
            ("majority ratio at its last step", [_ratio(row["majority_ratio"]) for row in rows.values()]),
        ]
        yield "train", *_table(list(rows), _prompts(settings, "train", {}), columns)


def _table(
    query_ids: Sequence[str], prompts: Mapping[str, str], columns: Sequence[tuple[str, list[str]]]
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: the questions, with their prompts where there are any, and the columns."""
    asked = [("prompt", [prompts.get(query_id, "-") for query_id in query_ids])] if prompts else []
    names, cells = zip(("question", query_ids), *asked, *columns, strict=True)
    return list(names), [list(row) for row in zip(*cells, strict=True)]


def _last_labels(labels: pa.Table | None) -> dict[str, dict[str, Any]]:
    """Return the row of each question's last step."""
    if labels is None:
        return {}
    columns = labels.select(["step", "query_id", "label", "majority_ratio"])
    return {row["query_id"]: row for row in sorted(columns.to_pylist(), key=lambda row: int(row["step"]))}


def _prompts(settings: Mapping[str, Any], split: str, gold: Mapping[str, str | None]) -> dict[str, str]:
    path = settings.get(_QUESTION_FILES.get(split, ""))
    if not isinstance(path, str):
        return {}
    columns = {name: settings[name] for name in _COLUMNS if isinstance(settings.get(name), str)}
    try:
        questions = read_questions(Path(path), **columns)
    except (InputError, OSError):  # moved or changed since; the report does without
        return {}
    return {
        question.id: _shortened(question.prompt)
        for question in questions
        if question.id not in gold or gold[question.id] == question.answer
    }


def _label(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{_shortened(row['label'] or 'none')} (step {row['step']})"


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _share(score: QuestionScore | None) -> str:
    return "-" if score is None else f"{score.n_correct}/{score.n}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PROMPT_LENGTH else line[: _PROMPT_LENGTH - 3] + "..."
