"""What a run works with: questions, prompts, policy, sampler and grader; opened once, closed at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dttrl.answers.grading import Grader
from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout
from dttrl.errors import InputError
from dttrl.method.measure_choice import Past
from dttrl.method.scored import Scored
from dttrl.method.settling import draw_until_sure
from dttrl.ranges import SampleRange
from dttrl.sampling.base import SampleRequest
from dttrl.sampling.models import LoadedModel, load_model, placement
from dttrl.sampling.prompts import (
    load_questions,
    prompt_encoder,
    prompt_metadata,
    settings_metadata,
    transformers_metadata,
)
from dttrl.sampling.read_rollouts import ReadRollouts
from dttrl.sampling.transformers import TransformersSampler
from dttrl.settings.commands import TrainConfig
from dttrl.settings.sections import Sampling
from dttrl.training.evaluation import evaluation_settings, graded_questions
from dttrl.training.observer import Observer
from dttrl.training.policy import Policy
from dttrl.training.run_folder import check_inputs, check_run
from dttrl.training.step import score_questions

Splits = Mapping[str, list[Question]]


def read_splits(config: TrainConfig) -> Splits:
    """Read the training and, where given, the held-out questions; checks what the method needs of them."""
    splits = {"train": load_questions(config.questions)}
    if config.evaluation.heldout is not None:
        splits["heldout"] = load_questions(config.questions, config.evaluation.heldout)
    if config.signal.vote is None:
        for question in splits["train"]:
            if question.answer is None:
                raise InputError(
                    f"{config.questions.path}: question {question.id!r} has no answer in column "
                    f"{config.questions.answer_column!r}; method {config.signal.method} labels with gold "
                    "answers"
                )
    return splits


@dataclass
class Workbench:
    """The opened parts of a run; ``prompt_ids`` are by split and question. The grader must be closed."""

    config: TrainConfig
    splits: Splits
    prompt_ids: dict[str, dict[str, tuple[int, ...]]]
    loaded: LoadedModel
    policy: Policy
    sampler: TransformersSampler
    grader: Grader
    metadata: dict[str, object]

    def sample(
        self, questions: Sequence[Question], step: int, observer: Observer, history: Past
    ) -> list[list[Rollout]]:
        """Return the training rollouts of each question, in the order of the questions.

        Where questions stop when they are sure, the past steps of a latent-answer vote count as well.
        """
        signal, sampling = self.config.signal, self.config.sampling
        groups: list[list[Rollout]] = [[] for _ in questions]
        read = ReadRollouts(questions, signal.votes, self.config.scoring, self.grader, step)

        def draw(open_O: NDArray[np.int64], block: range) -> None:
            chosen = [questions[r] for r in open_O.tolist()]
            requests = self._requests("train", chosen, block, step)
            drawn = self._collect(requests, sampling, observer, "sample")
            for r, group in zip(open_O.tolist(), drawn, strict=True):
                groups[r] += group
                if signal.until is not None:
                    read.add(group)

        if isinstance(signal.count, SampleRange) and signal.until is not None:
            draw_until_sure(len(questions), signal.count, signal.until, draw, read.scores, past=history)
        else:
            draw(np.arange(len(questions)), range(signal.votes))
        return groups

    def evaluate(self, step: int, observer: Observer) -> Iterator[tuple[str, Scored]]:
        """Yield, for each split that has gold answers, the scored samples of its questions."""
        for split, questions in graded_questions(self.splits).items():
            requests = self._requests(split, questions, range(self.config.evaluation.samples), step)
            settings = evaluation_settings(self.config, split)
            rollouts = self._collect(requests, settings, observer, f"evaluate {split}")
            yield split, score_questions(questions, rollouts, self.config.scoring, self.grader)

    def _requests(
        self, split: str, questions: Sequence[Question], samples: range, step: int
    ) -> list[SampleRequest]:
        ids = self.prompt_ids[split]
        return [SampleRequest(question.id, ids[question.id], tuple(samples), step) for question in questions]

    def _collect(
        self, requests: Sequence[SampleRequest], settings: Sampling, observer: Observer, phase: str
    ) -> list[list[Rollout]]:
        found: dict[str, list[Rollout]] = {}
        for group in self.sampler.sample(requests, settings):
            found[group[0].query_id] = group
            observer.phase(phase, len(found), len(requests))
        return [found[request.query_id] for request in requests]


def open_workbench(config: TrainConfig, model: str, splits: Splits) -> Workbench:
    """Load the model (``model`` may be a checkpoint of the run) and prepare everything a step needs."""
    device, arithmetic = placement(config.model)
    if arithmetic == torch.float16:
        raise InputError("--dtype float16 cannot train without loss scaling; use bfloat16 or float32")
    # Weights are float32 whatever the arithmetic: a step of 5e-7 is lost in bfloat16's three digits.
    chosen = config.model
    if model != chosen.name:
        chosen = chosen.model_copy(update={"name": model, "revision": None})
    loaded = load_model(chosen, device=device, dtype=torch.float32)
    reference = None
    if config.update.beta > 0:
        reference = load_model(config.model, device=device, dtype=torch.float32).model
    autocast_dtype = None if arithmetic == torch.float32 else arithmetic
    encode = prompt_encoder(config.questions, loaded)
    pad_id = loaded.tokenizer.pad_token_id
    policy = Policy(
        loaded.model,
        config.update,
        temperature=config.sampling.temperature,
        pad_id=loaded.eos_ids[0] if pad_id is None else pad_id,
        reference=reference,
        autocast_dtype=autocast_dtype,
    )
    return Workbench(
        config=config,
        splits=splits,
        prompt_ids={
            split: {question.id: encode(question) for question in questions}
            for split, questions in splits.items()
        },
        loaded=loaded,
        policy=policy,
        sampler=TransformersSampler(
            loaded.model, loaded.tokenizer, loaded.eos_ids, autocast_dtype=autocast_dtype
        ),
        grader=Grader(kind=config.scoring.kind),
        metadata=transformers_metadata(arithmetic) | run_metadata(config, loaded.name, loaded.revision),
    )


def prepare_run(config: TrainConfig, *, overwrite: bool) -> tuple[TrainConfig, Splits]:
    """Check a new run before anything is loaded; return its settings with absolute paths, and its questions.

    Raises :class:`OutputExistsError` where the folder exists and ``overwrite`` is not set, and
    :class:`InputError` for inputs that lie in it and for questions that cannot be used.
    """
    check_run(config.keeping.run, overwrite=overwrite)
    inputs = {"model": Path(config.model.name), "question file": config.questions.path}
    check_inputs(
        config.keeping.run,
        inputs | ({"held-out file": config.evaluation.heldout} if config.evaluation.heldout else {}),
    )
    config = absolute(config)
    return config, read_splits(config)


def run_metadata(config: TrainConfig, name: str, revision: str | None) -> dict[str, object]:
    """Return what the files of a run say of the run, whatever engine samples."""
    return {
        **prompt_metadata(config.questions, name, revision),
        **settings_metadata(config.sampling),
        # Resumed from a checkpoint, the policy is still a policy of the run's model.
        "model": config.model.name,
        "method": config.signal.method,
        "measure": config.scoring.measure,
        "region": config.scoring.region,
        "answer_kind": config.scoring.kind,
        "last_number": config.scoring.last_number,
    }


def absolute(config: TrainConfig) -> TrainConfig:
    """Local paths of a saved configuration must be found from anywhere."""
    changes: dict[str, object] = {"questions": config.questions.path.resolve()}
    if config.evaluation.heldout is not None:
        changes["heldout"] = config.evaluation.heldout.resolve()
    if Path(config.model.name).exists():
        changes["model"] = str(Path(config.model.name).resolve())
    return config.but(**changes)
