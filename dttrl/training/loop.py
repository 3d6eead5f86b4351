"""Test-time reinforcement learning without labels: the training framework of the paper (alg:framework).

Each step samples G rollouts of B questions, scores them, turns the batch into pseudo-labels and weighted
advantages with the one function :func:`dttrl.method.training_signal.training_signal`, and updates the policy.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dttrl.data.outputs import locked
from dttrl.errors import InputError
from dttrl.method.first_votes import standings_of
from dttrl.method.methods import EARLIER_DEFAULT
from dttrl.sampling.models import save_model
from dttrl.settings.choices import OpenRLHF
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import dump_config, load_config
from dttrl.training.checkpoint import (
    RunState,
    checkpoint_path,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from dttrl.training.evaluation import evaluation_summary, evaluation_table
from dttrl.training.metrics import stopping_metrics
from dttrl.training.observer import Observer
from dttrl.training.policy import TrainingRow, UpdateStatistics
from dttrl.training.run_folder import (
    LOCK,
    RunFolder,
    create_run,
    find_config,
    read_questions_of,
)
from dttrl.training.schedule import batch_indices, learning_rate, total_steps
from dttrl.training.setup import Workbench, open_workbench, prepare_run
from dttrl.training.step import Clock, LabelledStep, label_step, record_step

_RESUME_MAY_CHANGE = frozenset({"device", "threads"})


def train(config: TrainConfig, *, observer: Observer | None = None, overwrite: bool = False) -> Path:
    """Run label-free training to its end and return the run folder.

    Raises :class:`InputError` before the run folder is made for anything wrong with questions, model or
    settings, and :class:`OutputExistsError` where the folder exists and ``overwrite`` is not set.
    """
    config, splits = prepare_run(config, overwrite=overwrite)
    bench = open_workbench(config, config.model.name, splits)
    create_run(config.keeping.run, dump_config(config), splits, overwrite=overwrite)
    return _Run(config, bench, observer or Observer()).go()


def resume(
    run: Path, *, observer: Observer | None = None, overrides: Mapping[str, object] | None = None
) -> Path:
    """Continue an interrupted run from its last checkpoint, to the bits of an uninterrupted one on a CPU.

    Only ``device`` and ``threads`` may be changed (bits need the same threads). The questions are the run's
    own copies. Without a checkpoint the run starts again; a finished run is left as it is.
    """
    refused = sorted(set(overrides or {}) - _RESUME_MAY_CHANGE)
    if refused:
        flag = refused[0].replace("_", "-")
        raise InputError(f"--{flag} cannot change in a resumed run; start another run with it")
    config = load_config(TrainConfig, find_config(run), {**(overrides or {}), "run": run}, lenient=True)
    splits = read_questions_of(run)
    saved = list_checkpoints(run / "checkpoints")
    last = saved[-1] if saved else 0
    if last >= total_steps(config.update, len(splits["train"])):
        return run
    model = str(checkpoint_path(run / "checkpoints", last) / "model") if last else config.model.name
    try:
        bench = open_workbench(config, model, splits)
    except InputError as error:
        if last and model in str(error):
            folder = checkpoint_path(run / "checkpoints", last)
            raise InputError(f"{error}; remove {folder} to go on from an earlier checkpoint") from None
        raise
    return _Run(config, bench, observer or Observer()).go(checkpoint=last)


def settings_digest(config: TrainConfig) -> str:
    """Return a digest of all that must not change between the parts of a run.

    Settings at their default are left out, so that a setting that did not exist when a run began, and has not
    been given since, does not keep it from going on.
    """
    left_out = {"run", *_RESUME_MAY_CHANGE, *OpenRLHF.model_fields}
    kept = {name: value for name, value in config.flat(changed_only=True).items() if name not in left_out}
    kept.pop("method", None)
    if config.signal.method != EARLIER_DEFAULT:
        kept["method"] = config.signal.method
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


class _Run:
    def __init__(self, config: TrainConfig, bench: Workbench, observer: Observer) -> None:
        self.config, self.bench, self.observer = config, bench, observer
        self.questions = bench.splits["train"]
        self.total = total_steps(config.update, len(self.questions))
        self.folder = RunFolder(config.keeping.run, bench.metadata)
        self.state = RunState(step=0, settings=settings_digest(config))
        self.history = config.signal.history()

    def go(self, *, checkpoint: int = 0) -> Path:
        """Algorithm 1 of the paper, with evaluations and checkpoints between its steps."""
        config = self.config
        self.observer.start(config.but(steps=self.total), config.keeping.run)
        with locked(config.keeping.run / LOCK, str(config.keeping.run)), self.bench.grader:
            if checkpoint:
                self._restore(checkpoint)
            # Without a checkpoint nothing is kept, not even the evaluation before the first step.
            self.folder.rewind(checkpoint or -1)
            if not checkpoint:
                self._evaluate(step=0)
            for step in range(self.state.step + 1, self.total + 1):
                self._step(step)
                if config.evaluation.due(step, self.total):
                    self._evaluate(step)
                self.state = replace(self.state, step=step)
                due = config.keeping.checkpoint_every and step % config.keeping.checkpoint_every == 0
                if step == self.total or due or self.state.best_step == step:
                    self._checkpoint()
        self.observer.end(config.keeping.run)
        return config.keeping.run

    def _restore(self, checkpoint: int) -> None:
        path = checkpoint_path(self.folder.checkpoints, checkpoint)
        state, self.history = load_checkpoint(path, self.bench.policy.optimizer, self.config.signal)
        if state.settings != self.state.settings:
            raise InputError(
                f"{self.config.keeping.run}: config.yaml is not the one that {path.name} was trained with; "
                "restore it, or start another run"
            )
        self.state = state

    def _step(self, step: int) -> None:
        config, clock = self.config, Clock()
        chosen = batch_indices(
            step, len(self.questions), config.update.questions_per_step, seed=config.sampling.seed
        )
        questions = [self.questions[i] for i in chosen]
        unknown = self.bench.grader.counters["unknown"]
        rollouts = self.bench.sample(questions, step, self.observer, self.history)
        clock.lap("sample")
        labelled, self.history = label_step(
            questions, rollouts, self.history, config, self.bench.grader, clock, unknown=unknown
        )
        rate = learning_rate(step, self.total, config.update)
        update = self.bench.policy.update(
            self._training_rows(labelled),
            learning_rate=rate,
            progress=lambda done, total: self.observer.phase("update", done, total),
        )
        clock.lap("update")
        record_step(self.folder, config, labelled)
        clock.lap("write")
        metrics = {
            **labelled.metrics(self.total),
            **(stopping_metrics(rollouts, config.signal.votes) if config.signal.until is not None else {}),
            **_update_metrics(update, rate, with_kl=config.update.beta > 0),
            **clock.seconds,
        }
        self.folder.append_metrics(metrics)
        self.observer.step(step, metrics)

    def _training_rows(self, step: LabelledStep) -> list[list[TrainingRow]]:
        prompt_ids, signal = self.bench.prompt_ids["train"], step.signal
        return [
            [
                TrainingRow(prompt_ids[question.id], group[g].token_ids, float(advantage))
                for g, advantage in zip(trained_M, advantage_M, strict=True)
            ]
            for question, group, trained_M, advantage_M in zip(
                step.questions, step.rollouts, signal.trained_BM, signal.advantage_BM, strict=True
            )
        ]

    def _evaluate(self, step: int) -> None:
        started = time.perf_counter()
        scores = {}
        for split, scored in self.bench.evaluate(step, self.observer):
            table = evaluation_table(step, split, scored)
            self.folder.add_table("evaluations", table)
            summary = evaluation_summary(table)
            scores[split] = float(summary[f"avg@{self.config.evaluation.samples}"])
            self.observer.evaluation(step, split, {**summary, "seconds": time.perf_counter() - started})
        self.folder.flush("evaluations")
        best, gold = self.state.best_score, scores.get("heldout", scores.get("train"))
        if step and gold is not None and (best is None or gold > best):
            self.state = replace(self.state, best_step=step, best_score=gold)
        elif step and not scores:
            self._judge_by_first_votes(step)

    def _judge_by_first_votes(self, step: int) -> None:
        """Without any gold answer: make the step the best where it gained as much as any before it."""
        labels, best = self.folder.table("labels"), self.state.best_score
        assert labels is not None
        (standing,) = standings_of(labels, [step], kind=self.config.scoring.kind)
        if best is None or standing.gain >= best:
            self.state = replace(self.state, best_step=step, best_score=standing.gain)

    def _checkpoint(self) -> None:
        self.folder.flush("history")
        save_checkpoint(
            self.folder.checkpoints,
            self.state,
            save_model=lambda folder: save_model(self.bench.loaded, folder),
            optimizer=self.bench.policy.optimizer,
            history=self.history,
        )
        prune_checkpoints(self.folder.checkpoints, self.state)


def _update_metrics(update: UpdateStatistics, rate: float, *, with_kl: bool) -> dict[str, float | None]:
    return {
        "loss": update.loss,
        "kl": update.kl if with_kl else None,
        "clip_fraction": update.clip_fraction,
        "grad_norm": update.grad_norm,
        "updates": update.n_updates,
        "trained_rollouts": update.n_rollouts,
        "learning_rate": rate,
    }
