"""A run labelled again from its saved rollouts, step by step, by its own method or by any other.

The history of confidences grows over the steps as it did in the run. The method that trained the run goes
through :func:`dttrl.training_signal.training_signal` with the run's settings, as in training, and its labels
are compared with ``labels.parquet``, column by column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dttrl.answers.grading import Grader
from dttrl.errors import InputError
from dttrl.methods import METHODS
from dttrl.offline import Ballot, Contender, expand, has_confidence, open_votes, pool_mixtures, strategies
from dttrl.questions import Question
from dttrl.rollout_files import RolloutFiles
from dttrl.schemas import LABELS
from dttrl.scored_blocks import FloatArray, ScoredBlock, read_blocks
from dttrl.scoring import ScoredQuestion
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.tables import read_table
from dttrl.training.records import label_table
from dttrl.training.run_folder import CONFIG, find_config
from dttrl.training.signal import scored_batch
from dttrl.training_signal import training_signal
from dttrl.vote_summary import VoteSummary
from dttrl.voting.registry import VoteOutcome

_WHOLE_STEP = 2**31
"""Rows of a block: a step is one block, as the mixture of training is that of a step."""


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

    def __init__(self, name: str, config: TrainConfig) -> None:
        self.name = name
        self.labels: pa.Table | None = None
        """The rows of LABELS of the last step."""
        self._config = config
        self._signal = config.signal
        if name != self._signal.method:
            self._signal = self._signal.model_copy(update={"method": name, "label": None})
        vote = self._signal.vote
        self.needs_confidence = vote is not None and vote.info.needs_confidence
        self._history = self._signal.history()

    def vote(self, block: ScoredBlock, weight_RN: FloatArray) -> VoteOutcome:
        """Label a step."""
        del weight_RN
        if block.step is None:
            raise InputError(f"method {self.name} labels training steps, and the rollouts have none")
        questions, scored = _questions(block)
        batch = scored_batch(block.step, scored, self._config)
        trained = min(self._signal.train_samples, batch.class_BG.shape[1])
        settings = self._signal.model_copy(update={"train_samples": trained})
        signal, self._history = training_signal(batch, self._history, settings)
        self.labels = label_table(batch, questions, scored, signal)
        mixture = signal.progressive.mixture if signal.progressive is not None else None
        return VoteOutcome(signal.vote, signal.distrivote, mixture)


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
    """Vote on the steps of a run with voting methods or methods of training (default: its own).

    ``all`` is every voting method and the run's own. Returns the summary and, where the run's own method is
    among them, how its labels compare with those of the run. Writes VOTES to ``output``.
    """
    config = load_config(TrainConfig, find_config(run), {"run": run}, lenient=True)
    files = RolloutFiles([run])
    files.require("answer", "answer_class", "confidence", "step")
    names = list(methods) or [config.signal.method]
    if "all" in names:
        names = [*expand(names), config.signal.method]
    own = [name for name in dict.fromkeys(names) if name in METHODS]
    contenders, notes = strategies(
        [name for name in names if name not in METHODS],
        has_confidence=has_confidence(files),
        pools=lambda window: pool_mixtures(files, "confidence", window),
    )
    trained = [Trained(name, config) for name in own]
    standing: list[Contender] = [*contenders, *trained]
    ballot = Ballot(standing, measure=config.scoring.measure, keep_disagreements=keep_disagreements)
    ballot.summary.notes = notes
    itself = next((one for one in trained if one.name == config.signal.method), None)
    written = written_labels(run)
    replayed = Replayed(config.signal.method) if itself is not None and written else None
    metadata = {**files.metadata, "methods": [one.name for one in standing], "run": str(run)}
    with open_votes(files, output, metadata, overwrite=overwrite) as sink:
        for block in run_steps(files, grader, written):
            table = ballot.vote(block)
            if sink is not None:
                sink.write(table)
            if replayed is not None and itself is not None and itself.labels is not None:
                _compare(replayed, itself.labels, written)
            if progress is not None:
                progress(ballot.summary.rollouts)
    return ballot.summary, replayed


_Written = dict[tuple[int, str], dict[str, Any]]


def written_labels(run: Path) -> _Written:
    """The rows of ``labels.parquet`` by step and question, in its order."""
    path = run / "labels.parquet"
    if not path.is_file():
        return {}
    return {(row["step"], row["query_id"]): row for row in read_table(path, LABELS).to_pylist()}


def run_steps(files: RolloutFiles, grader: Grader, written: _Written) -> Iterator[ScoredBlock]:
    """Yield each step of a run as one block, its questions in the order of ``written``; raises InputError."""
    order = {key: place for place, key in enumerate(written)}
    last: int | None = None
    for path in files.paths:
        for block in read_blocks(RolloutFiles([path]), grader=grader, rows=_WHOLE_STEP):
            if block.step is None or (last is not None and block.step <= last):
                raise InputError(
                    f"{path}: step {block.step} follows step {last}, or its questions differ in their number "
                    "of rollouts; a run is replayed from one file a step, in order"
                )
            last = step = block.step
            places = [order.get((step, query_id), len(order)) for query_id in block.query_id]
            yield block.take(np.argsort(places, kind="stable").tolist())


def _questions(block: ScoredBlock) -> tuple[list[Question], list[ScoredQuestion]]:
    gold_class = block.gold_class_R.tolist()
    questions = [
        Question(id=query_id, prompt="", answer=gold)
        for query_id, gold in zip(block.query_id, block.gold, strict=True)
    ]
    scored = [
        ScoredQuestion(
            query_id=query_id,
            answers=[],
            sources=[],
            class_G=block.class_RN[r],
            confidence_G=block.confidence_RN[r],
            spellings=[block.words[word] for word in block.word_RC[r].tolist() if word >= 0],
            gold_class=None if block.gold[r] is None else gold_class[r],
            gold=block.gold[r],
        )
        for r, query_id in enumerate(block.query_id)
    ]
    return questions, scored


def _compare(replayed: Replayed, labels: pa.Table, written: _Written) -> None:
    for row in labels.to_pylist():
        before = written.get((row["step"], row["query_id"]))
        replayed.rows += 1
        if before is None:
            replayed.unknown += 1
            continue
        differing = [name for name, value in row.items() if name in before and before[name] != value]
        replayed.differing.update(differing)
        replayed.same += not differing
