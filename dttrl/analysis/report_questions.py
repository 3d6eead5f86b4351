"""The report's tables of questions: how each was answered before and after, and what it was trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dttrl.analysis.accuracy import QuestionScore
from dttrl.analysis.runs import read_scores
from dttrl.errors import InputError
from dttrl.questions import read_questions

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
    for split in dict.fromkeys(name for _, name in scores):
        steps = [step for step, name in scores if name == split]
        before, after = scores[steps[0], split], scores[steps[-1], split]
        prompts = _prompts(settings, split, {score.query_id: score.gold for score in after})
        yield split, *_evaluated(steps, before, after, prompts, last_labels if split == "train" else {})
    if not scores and last_labels:
        yield "train", *_unlabelled(last_labels, _prompts(settings, "train", {}))


def _evaluated(
    steps: Sequence[int],
    before: Sequence[QuestionScore],
    after: Sequence[QuestionScore],
    prompts: Mapping[str, str],
    labels: Mapping[str, Mapping[str, Any]],
) -> tuple[list[str], list[list[str]]]:
    first = {score.query_id: score for score in before}
    header = [
        "question",
        *(["prompt"] if prompts else []),
        "gold",
        *(["last pseudo-label"] if labels else []),
        f"right, step {steps[0]}",
        f"right, step {steps[-1]}",
        f"majority ratio, step {steps[-1]}",
    ]
    rows = [
        [
            score.query_id,
            *([prompts.get(score.query_id, "-")] if prompts else []),
            _shortened(score.gold or "-"),
            *([_label(labels.get(score.query_id))] if labels else []),
            _share(first.get(score.query_id)),
            _share(score),
            "-" if math.isnan(score.majority_ratio) else f"{score.majority_ratio:.3f}",
        ]
        for score in after
    ]
    return header, rows


def _unlabelled(
    labels: Mapping[str, Mapping[str, Any]], prompts: Mapping[str, str]
) -> tuple[list[str], list[list[str]]]:
    header = [
        "question",
        *(["prompt"] if prompts else []),
        "last pseudo-label",
        "majority ratio at its last step",
    ]
    rows = [
        [
            query,
            *([prompts.get(query, "-")] if prompts else []),
            _label(row),
            f"{row['majority_ratio']:.3f}",
        ]
        for query, row in sorted(labels.items())
    ]
    return header, rows


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


def _share(score: QuestionScore | None) -> str:
    return "-" if score is None else f"{score.n_correct}/{score.n}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _PROMPT_LENGTH else line[: _PROMPT_LENGTH - 3] + "..."
