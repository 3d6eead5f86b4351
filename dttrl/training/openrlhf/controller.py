"""The controller of a run at scale: everything between the rollouts of a step and its advantages.

It stands beside OpenRLHF's trainer, knows nothing of it, and writes the run folder of the in-process engine:
step rollouts, labels, history, evaluations and metrics, through the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dttrl.answers.grading import Grader
from dttrl.data.outputs import replacing
from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout
from dttrl.errors import InputError
from dttrl.sampling.models import load_tokenizer
from dttrl.sampling.prompts import prompt_encoder
from dttrl.sampling.text import TextDecoder, finished_rollout
from dttrl.settings.commands import ScaleConfig
from dttrl.settings.files import load_config
from dttrl.training.evaluation import evaluation_table
from dttrl.training.openrlhf.flags import prompt_row, question_id
from dttrl.training.run_folder import RunFolder, find_config, read_questions_of
from dttrl.training.schedule import total_steps
from dttrl.training.setup import run_metadata
from dttrl.training.step import Clock, LabelledStep, label_step, record_step, score_questions

Response = Mapping[str, Any]
"""What the executor returned for one rollout."""


class TrainedRollout(NamedTuple):
    """One rollout to train on: its place among the step's responses, its reward and weighted advantage."""

    place: int
    reward: float
    advantage: float


class Controller:
    """Opens the run folder ``run`` (its configuration and questions) and follows its steps."""

    def __init__(self, run: Path, *, backend_version: str) -> None:
        self.config = config = load_config(ScaleConfig, find_config(run), {"run": run}, lenient=True)
        self.splits = read_questions_of(run)
        self.total = total_steps(config.update, len(self.splits["train"]))
        self._by_id = {question.id: question for question in self.splits["train"]}
        self._loaded = load_tokenizer(config.model)
        encode = prompt_encoder(config.questions, self._loaded)
        self._rows = {
            q: prompt_row(q, encode(q), config.sampling.k) for split in self.splits.values() for q in split
        }
        self._decoder = TextDecoder(self._loaded.tokenizer)
        self._grader = Grader(kind=config.scoring.kind)
        self._history = config.signal.history()
        self.folder = RunFolder(
            run,
            {
                "backend": "vllm",
                "backend_version": backend_version,
                "engine": "openrlhf",
                "logprobs_mode": "raw_logprobs",
                "entropy": "topk",
                **run_metadata(config, self._loaded.name, self._loaded.revision),
            },
        )
        self._step: LabelledStep | None = None
        self._seconds: dict[str, float] = {}

    def start(self, step: int) -> None:
        """Begin after ``step`` (0: from the start): drop newer records and take up the history."""
        self.folder.rewind(step or -1)
        self._history = self.config.signal.history()
        if step and self.config.signal.row.history:
            path = self._history_path(step)
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    self._history = self.config.signal.history(dict(arrays))
            except (OSError, ValueError, KeyError) as error:
                raise InputError(f"{path}: the confidence history cannot be read ({error})") from None

    def label(self, step: int, labels: Sequence[str], responses: Sequence[Response]) -> list[TrainedRollout]:
        """Vote, reward, select and weigh the rollouts of a step, and write them down.

        ``labels[i]`` is the dataset's label of response i; those of one question are neighbours, in sample
        order. Returns the rollouts to train on, by question and place. InputError where a question has
        another number of rollouts than ``votes``.
        """
        clock = Clock()
        groups: dict[str, list[int]] = {}
        for i, label in enumerate(labels):
            groups.setdefault(question_id(label), []).append(i)
        groups = dict(sorted(groups.items()))
        wrong = [name for name, places in groups.items() if len(places) != self.config.signal.votes]
        if wrong:
            raise InputError(
                f"step {step}: question {wrong[0]!r} has {len(groups[wrong[0]])} rollouts, not "
                f"{self.config.signal.votes}"
            )
        questions = [self._by_id[name] for name in groups]
        rollouts = [
            [self._rollout(name, g, responses[i], step) for g, i in enumerate(places)]
            for name, places in groups.items()
        ]
        self._step, self._history = label_step(
            questions, rollouts, self._history, self.config, self._grader, clock
        )
        record_step(self.folder, self.config, self._step)
        clock.lap("write")
        signal, self._seconds = self._step.signal, clock.seconds
        return [
            TrainedRollout(places[g], float(signal.reward_BG[b, g]), float(signal.advantage_BM[b, m]))
            for b, places in enumerate(groups.values())
            for m, g in enumerate(signal.trained_BM[b])
        ]

    def finish(self, status: Mapping[str, float]) -> None:
        """Write the metrics of the step that :meth:`label` began; ``status`` are the runner's own."""
        if self._step is None:
            raise InputError("a step was finished that was not begun")
        step, self._step = self._step, None
        self.folder.append_metrics(
            {
                **step.metrics(self.total),
                "trained_rollouts": step.signal.trained_BM.size,
                **status,
                **self._seconds,
            }
        )

    def save(self, step: int) -> None:
        """Write all records down, and the history that a run resumed after ``step`` goes on with."""
        self.folder.flush()
        path = self._history_path(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **self._history.to_arrays())

    def rows(self, questions: Sequence[Question]) -> tuple[list[str], list[str]]:
        """Return texts and labels of questions, as OpenRLHF carries them through a rollout."""
        found = [self._rows[question] for question in questions]
        return [text for text, _ in found], [label for _, label in found]

    def evaluated(
        self, step: int, split: str, questions: Sequence[Question], responses: Sequence[Sequence[Response]]
    ) -> None:
        """Grade the samples of an evaluation and write them down."""
        for question, group in zip(questions, responses, strict=True):
            rollouts = [self._rollout(question.id, g, response, step) for g, response in enumerate(group)]
            scored = score_questions([question], [rollouts], self.config.scoring, self._grader)
            self.folder.add_table("evaluations", evaluation_table(step, split, scored))
        self.folder.flush("evaluations")

    def close(self) -> None:
        """Write what is left and end the grader's worker."""
        self.folder.flush()
        self._grader.close()

    def _history_path(self, step: int) -> Path:
        return self.folder.checkpoints / "history" / f"step-{step:06d}.npz"

    def _rollout(self, query_id: str, sample_id: int, response: Response, step: int) -> Rollout:
        drawn = response["dttrl"]
        return finished_rollout(
            query_id,
            sample_id,
            np.asarray(drawn["token_ids"], dtype=np.int32),
            # The engine gives the likeliest tokens alone, and self-certainty needs them all.
            np.asarray(drawn["statistics"], dtype=np.float32)[:-1],
            drawn["finish_reason"],
            decoder=self._decoder,
            eos_ids=self._loaded.eos_ids,
            step=step,
        )
