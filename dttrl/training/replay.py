"""A run labelled again from its saved rollouts, step by step, by its own method or by any other.

The history of confidences grows over the steps as it did in the run. The method that trained the run goes
through :func:`dttrl.method.training_signal.training_signal` with the run's settings, as in training, and its
labels are compared with ``labels.parquet``, column by column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import LABELS
from dttrl.data.tables import read_table
from dttrl.errors import InputError
from dttrl.method.ballots import FloatArray
from dttrl.method.methods import METHODS
from dttrl.method.scored import Scored
from dttrl.method.training_signal import training_signal
from dttrl.method.voting.registry import VoteOutcome, spelled
from dttrl.scoring.scored_files import WHOLE_FILE, read_scored
from dttrl.scoring.summary import VoteSummary
from dttrl.scoring.vote import elect, expand, strategies
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.training.run_folder import CONFIG, find_config
from dttrl.training.step import label_table

Written = dict[tuple[int, str], dict[str, Any]]
"""Rows of ``labels.parquet`` by step and question, in its order."""


@dataclass
class Replayed:
    """How the labels of the method that trained the run compare with those it wrote."""

    method: str
    rows: int = 0
    same: int = 0
    unknown: int = 0
    """Rows that ``labels.parquet`` lacks."""
    differing: Counter[str] = field(default_factory=Counter)
    """Rows that differ, by column."""

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        text = f"labels.parquet: {self.same} of {self.rows} labels of {self.method} reproduced exactly"
        if self.differing:
            columns = ", ".join(f"{name} ({count})" for name, count in self.differing.most_common())
            text += f"; different: {columns}"
        if self.unknown:
            text += f"; {self.unknown} are not in it"
        return text


class Trained:
    """A method of training that stands for election; it must see the steps one by one, in order."""

    needs_weights = False  # training_signal makes and checks them

    def __init__(self, name: str, config: TrainConfig, written: Written | None = None) -> None:
        self._signal = config.signal
        if name != self._signal.method:
            self._signal = self._signal.model_copy(update={"method": name, "label": None})
        self.name = self._signal.title
        self.replayed = Replayed(self.name) if written else None
        """How its labels compare with those written, where there are any."""
        self._written = written or {}
        self.labels: pa.Table | None = None
        """The rows of LABELS of the last step."""
        vote = self._signal.vote
        self.needs_confidence = vote is not None and vote.info.needs_confidence
        self._history = self._signal.empty_memory()

    def vote(self, block: Scored, weight_RN: FloatArray) -> VoteOutcome:
        """Label a step."""
        del weight_RN
        if block.step is None:
            raise InputError(f"method {self.name} labels training steps, and the rollouts have none")
        trained = min(self._signal.train_samples, int(block.n_drawn_R.min()))
        settings = self._signal.model_copy(update={"train_samples": trained})
        signal, self._history = training_signal(block, self._history, settings)
        self.labels = label_table(block, signal)
        if self.replayed is not None:
            self._compare(self.replayed, self.labels)
        mixture = signal.progressive.mixture if signal.progressive is not None else None
        return VoteOutcome(signal.vote, signal.distrivote, mixture, signal.probability_B)

    def _compare(self, replayed: Replayed, labels: pa.Table) -> None:
        for row in labels.to_pylist():
            before = self._written.get((row["step"], row["query_id"]))
            replayed.rows += 1
            if before is None:
                replayed.unknown += 1
                continue
            differing = [name for name, value in row.items() if name in before and before[name] != value]
            replayed.differing.update(differing)
            replayed.same += not differing


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run with saved rollouts."""
    return (path / CONFIG).is_file() and (path / "rollouts").is_dir()


def replay_run(
    run: Path,
    methods: Sequence[str] = (),
    *,
    grader: Grader,
    output: Path | None = None,
    overwrite: bool = False,
    keep_disagreements: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[VoteSummary, Replayed | None]:
    """Vote on the steps of a run with voting methods or methods of training.

    The default is the run's own, beside ``sc`` and ``latent`` unless it labels by them; ``all`` is every
    voting method and the run's own. Returns the summary and, where the run's own method is among them, how
    its labels compare with those of the run. Writes VOTES to ``output``.
    """
    config = load_config(TrainConfig, find_config(run), {"run": run}, lenient=True)
    files = RolloutFiles([run])
    files.require("answer", "answer_class", "confidence", "step")
    names = list(methods) or _own_and_others(config)
    if "all" in names:
        names = [*expand(names), config.signal.method]
    own = [name for name in dict.fromkeys(names) if name in METHODS]
    width = None if config.signal.until is None else config.signal.votes
    written = written_labels(run)
    steps = partial(run_steps, files, grader, written, width)
    contenders, notes = strategies([name for name in names if name not in METHODS], files, steps)
    trained = [Trained(name, config, written if name == config.signal.method else None) for name in own]
    summary = elect(
        files, [*contenders, *trained], steps, output=output, overwrite=overwrite,
        keep_disagreements=keep_disagreements, progress=progress, run=str(run),
    )  # fmt: skip
    summary.notes = notes
    return summary, next((one.replayed for one in trained if one.replayed is not None), None)


def _own_and_others(config: TrainConfig) -> list[str]:
    vote = config.signal.vote
    own = None if vote is None else spelled(vote)
    return [*(name for name in ("sc", "latent") if name != own), config.signal.method]


def written_labels(run: Path) -> Written:
    """The rows of ``labels.parquet`` by step and question, in its order."""
    path = run / "labels.parquet"
    if not path.is_file():
        return {}
    return {(row["step"], row["query_id"]): row for row in read_table(path, LABELS).to_pylist()}


def run_steps(
    files: RolloutFiles, grader: Grader, written: Written, width: int | None = None
) -> Iterator[Scored]:
    """Yield each step of a run as one block, its questions in the order of ``written``; raises InputError.

    ``width`` is what a question may have at most, where questions differ in their number of rollouts.
    """
    order = {key: place for place, key in enumerate(written)}
    last: int | None = None
    for path in files.paths:
        # A step is one block, as the mixture of training is that of a step.
        for block in read_scored(RolloutFiles([path]), grader=grader, rows=WHOLE_FILE, width=width):
            if block.step is None or (last is not None and block.step <= last):
                raise InputError(
                    f"{path}: step {block.step} follows step {last}, or its questions differ in their number "
                    "of rollouts; a run is replayed from one file a step, in order"
                )
            last = step = block.step
            places = [order.get((step, query_id), len(order)) for query_id in block.query_id]
            yield block.take(np.argsort(places, kind="stable").tolist())
