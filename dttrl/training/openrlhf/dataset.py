"""The prompts as OpenRLHF reads them: one JSON line a question."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dttrl.questions import Question
from dttrl.training.run_folder import replace_text

INPUT_KEY, LABEL_KEY = "input", "label"


def prompt_row(question: Question, prompt_ids: Sequence[int], k: int) -> tuple[str, str]:
    """Return what OpenRLHF carries through a rollout: the question's text, and a label that names it.

    The label is JSON: OpenRLHF passes it to the executor and gives it back with the rollout, unread. Gold
    answers are not in it.
    """
    return question.prompt, json.dumps({"id": question.id, "prompt_ids": list(prompt_ids), "k": k})


def write_prompts(
    path: Path, questions: Sequence[Question], encode: Callable[[Question], Sequence[int]], k: int
) -> None:
    """Write the dataset of a run."""
    lines = []
    for question in questions:
        text, label = prompt_row(question, encode(question), k)
        lines.append(json.dumps({INPUT_KEY: text, LABEL_KEY: label}) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(lines))


def question_id(label: str) -> str:
    """Return the id of the question that a label names."""
    return str(json.loads(label)["id"])
