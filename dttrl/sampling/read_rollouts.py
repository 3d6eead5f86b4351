"""What the rollouts drawn so far say: their answers and confidences, from which it is decided who stops.

Of a rollout its answer and its confidences are kept, no text and no tokens: memory holds many questions.
Axis letters: R questions, N rollouts of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dttrl.answers.grading import Grader
from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout
from dttrl.method.ballots import ABSENT, IntArray
from dttrl.method.scored import Scored
from dttrl.scoring.score import asked_confidences, read_rollout
from dttrl.settings.sections import Scoring


class ReadRollouts:
    """Answers and confidences of up to ``width`` rollouts of each of ``questions``, a row for each."""

    def __init__(
        self,
        questions: Sequence[Question],
        width: int,
        scoring: Scoring,
        grader: Grader,
        step: int | None = None,
    ) -> None:
        self._width, self._step = width, step
        self._row = {question.id: r for r, question in enumerate(questions)}
        self._graders = [grader.for_source(question.source, question.id) for question in questions]
        self._scoring, self._asked = scoring, asked_confidences(scoring)
        self._read: list[dict[int, tuple[str | None, dict[str, float]]]] = [{} for _ in questions]
        self._classes: dict[int, IntArray] = {}

    def add(self, rollouts: Iterable[Rollout]) -> None:
        """Read rollouts of any of the questions; of two with one sample id the first counts."""
        for rollout in rollouts:
            row = self._row[rollout.query_id]
            if rollout.sample_id not in self._read[row]:
                extraction, confidence = read_rollout(rollout, self._scoring, self._asked, self._graders[row])
                self._read[row][rollout.sample_id] = extraction.answer, confidence

    def scores(self, n_drawn_R: IntArray) -> Scored:
        """Return the scores (R, width) of the first rollouts of each question, the rest ABSENT.

        Classes are numbered as among these rollouts alone. The rollouts must have been added.
        """
        shape = len(self._read), self._width
        class_RN = np.full(shape, ABSENT, dtype=np.int32)
        measured = {name: np.full(shape, np.nan) for name in self._asked}
        for row, count in enumerate(n_drawn_R.tolist()):
            read = [self._read[row][sample] for sample in range(count)]
            class_N = self._classes.get(row)
            if class_N is None or len(class_N) != count:  # a question that has stopped is not classed again
                class_N = self._classes[row] = self._graders[row].classes([answer for answer, _ in read])
            class_RN[row, :count] = class_N
            for name, confidence_RN in measured.items():
                confidence_RN[row, :count] = [confidence[name] for _, confidence in read]
        choice = measured if self._scoring.measure == "auto" else {}
        return Scored(class_RN, next(iter(measured.values())), self._step, candidates=choice)
