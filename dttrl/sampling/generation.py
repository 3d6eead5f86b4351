"""Generation: questions -> rollouts on disk, in parts, so that interrupted work goes on where it stopped.

Finished rollouts are written as small Parquet files into ``<output>.parts/`` and joined at the end. The same
command run again samples only the questions that no part holds, in the batches in which an uninterrupted run
would have sampled them, and so ends in the same bytes on the same machine. With another number of samples or
another batch size the samples are the same and their statistics equal up to floating-point rounding. Gold
answers and sources are those of the last call. Parts that were made with other settings, other model files or
other questions are refused, and so is a second process on the same output.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dttrl.answers.grading import Grader
from dttrl.data.outputs import check_new_file
from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout
from dttrl.data.tables import TableWriter
from dttrl.errors import InputError
from dttrl.method.settling import Unspent, draw_until_sure
from dttrl.ranges import SampleRange
from dttrl.sampling.base import OpenedBackend, SampleRequest, fitting
from dttrl.sampling.opening import open_backend
from dttrl.sampling.parts import Parts
from dttrl.sampling.prompts import load_questions, settings_metadata
from dttrl.sampling.read_rollouts import ReadRollouts
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.sections import Generation, Sampling, Scoring


@dataclass(frozen=True)
class GenerationSummary:
    """What a generate command did; ``sampled`` of ``rollouts`` were drawn now, the rest were there."""

    output: Path
    questions: int
    rollouts: int
    sampled: int
    tokens: int
    truncated: int
    skipped: tuple[str, ...]
    """Ids of questions that were left out because their prompts are too long."""
    seconds: float
    unspent: Unspent | None = None
    """Where questions stop when they are sure: what they left over."""


def generate_rollouts(
    questions: Sequence[Question],
    output: Path,
    opened: OpenedBackend,
    generation: Generation,
    settings: Sampling,
    *,
    scoring: Scoring | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationSummary:
    """Sample the rollouts of each question into ``output``, continuing what earlier calls began.

    The backend's files and metadata must be those of the parts. ``scoring`` says how answers are found where
    questions stop when they are sure. ``progress`` is called with the rollouts that are finished and how many
    there will be; the first call counts what was there. With ``overwrite`` an existing output is replaced at
    the end, and parts of other settings are discarded.
    """
    if not questions:
        raise InputError("no question to sample; the question file is empty")
    check_new_file(output, overwrite=overwrite)
    began = time.monotonic()
    by_id = {question.id: question for question in questions}
    keep_tokens, scoring = generation.keep_tokens, scoring or Scoring()
    full = {**opened.metadata, **settings_metadata(settings), "keep_tokens": keep_tokens}
    if generation.until is not None:
        full["stopping"] = {
            **generation.model_dump(mode="json", by_alias=True, include={"count", "until"}),
            **scoring.model_dump(mode="json"),
        }
    with Parts(output, {**full, "model_files": opened.files}, keep_tokens=keep_tokens) as parts:
        try:
            held = parts.open(by_id)
        except InputError:
            if not overwrite:
                raise
            parts.discard()
            held = {}
        drawing = _Drawing(by_id, held, parts, opened, settings, progress)
        try:
            drawn = drawing.draw(generation, scoring)
        finally:  # also on Ctrl-C: finished questions are kept
            parts.flush(by_id)
        counts = _join(parts.groups(by_id, drawn), output, full, generation, overwrite=overwrite)
        parts.remove()
    seconds = time.monotonic() - began
    return replace(counts, sampled=drawing.sampled, seconds=seconds)


def generate(
    config: GenerateConfig,
    output: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> GenerationSummary:
    """Do what ``config`` says: read the questions, load the model, sample into ``output``.

    ``note`` is given, a line at a time, what the user must know before sampling begins.
    """
    check_new_file(output, overwrite=overwrite)
    questions = load_questions(config.questions)
    opened = open_backend(config, questions)
    if note is not None:
        for line in opened.notes:
            note(line)
    settings = config.sampling
    if opened.k is not None:
        settings = settings.model_copy(update={"k": opened.k})
    skipped: list[str] = []
    if config.generation.skip_long:
        questions, skipped = fitting(
            questions, opened.encode, context=opened.context, max_new_tokens=settings.max_new_tokens
        )
    if skipped:
        opened = replace(opened, metadata={**opened.metadata, "skipped_long": skipped})
    summary = generate_rollouts(
        questions, output, opened, config.generation, settings, scoring=config.scoring, overwrite=overwrite,
        progress=progress,
    )  # fmt: skip
    return replace(summary, skipped=tuple(skipped))


class _Drawing:
    """Draws the rollouts of questions that the parts do not hold, and keeps them there."""

    def __init__(
        self,
        questions: Mapping[str, Question],
        held: Mapping[str, set[int]],
        parts: Parts,
        opened: OpenedBackend,
        settings: Sampling,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.sampled = 0
        self._questions, self._held, self._parts = questions, held, parts
        self._opened, self._settings, self._progress = opened, settings, progress
        self._ids = sorted(questions)

    def draw(self, generation: Generation, scoring: Scoring) -> dict[str, int]:
        """Draw what is asked for; return how many rollouts each question has then."""
        if not isinstance(generation.count, SampleRange) or generation.until is None:
            for _ in self._block(self._ids, range(generation.samples), before=0, after=0):
                pass
            return dict.fromkeys(self._ids, generation.samples)
        return self._until_sure(generation.count, generation.until, scoring)

    def _until_sure(self, budget: SampleRange, until: float, scoring: Scoring) -> dict[str, int]:
        """Draw block by block until every question is sure; held rollouts count in the block of their id."""
        with Grader(kind=scoring.kind) as grader:
            read = ReadRollouts([self._questions[name] for name in self._ids], budget.most, scoring, grader)
            read.add(self._parts.rollouts(self._questions))
            done = 0

            def draw(open_O: NDArray[np.int64], block: range) -> None:
                nonlocal done
                names = [self._ids[r] for r in open_O.tolist()]
                most = len(names) * (budget.most - block.stop)
                for rollouts in self._block(names, block, before=done, after=most):
                    read.add(rollouts)
                done += len(names) * len(block)

            n_drawn_R = draw_until_sure(len(self._ids), budget, until, draw, read.scores)
        return dict(zip(self._ids, n_drawn_R.tolist(), strict=True))

    def _block(
        self, names: Sequence[str], samples: range, *, before: int, after: int
    ) -> Iterator[list[Rollout]]:
        """Draw some samples of some questions, those that are missing, and yield what was drawn.

        ``before`` and ``after`` count the rollouts of other blocks, for the progress.
        """
        requests = self._requests(names, samples)
        missing = sum(len(request.sample_ids) for request in requests if not request.held)
        done = before + len(names) * len(samples) - missing
        total = done + missing + after
        if self._progress is not None:
            self._progress(done, total)
        for rollouts in self._opened.sampler.sample(requests, self._settings) if missing else ():
            self._parts.add(rollouts, self._questions)
            self.sampled += len(rollouts)
            done += len(rollouts)
            if self._progress is not None:
                self._progress(done, total)
            yield rollouts

    def _requests(self, names: Sequence[str], samples: range) -> list[SampleRequest]:
        """Return a request a question, in id order: its missing samples, or all of them as held.

        Held questions keep their places in the batches, so that the others are decoded in the same company.
        """
        requests = []
        for query_id in names:
            ids = tuple(samples)
            missing = tuple(i for i in ids if i not in self._held.get(query_id, ()))
            prompt = tuple(self._opened.encode(self._questions[query_id]))
            requests.append(SampleRequest(query_id, prompt, missing or ids, held=not missing))
        return requests


def _join(
    groups: Iterator[pa.Table],
    output: Path,
    metadata: Mapping[str, object],
    generation: Generation,
    *,
    overwrite: bool,
) -> GenerationSummary:
    """Write the questions as one file and count what is in it."""
    tokens = truncated = questions = rollouts = stopped = 0
    saved = 0.0
    first = next(groups)
    with TableWriter(output, first.schema, metadata=metadata, overwrite=overwrite) as writer:
        for table in itertools.chain([first], groups):
            own = int(pc.sum(table.column("num_tokens")).as_py() or 0)
            left = generation.samples - len(table)
            tokens, questions, rollouts = tokens + own, questions + 1, rollouts + len(table)
            stopped, saved = stopped + bool(left), saved + left * own / len(table)
            truncated += int(pc.sum(pc.equal(table.column("finish_reason"), "length")).as_py() or 0)
            writer.write(table)
    unspent, budget = None, questions * generation.samples
    if generation.until is not None:
        unspent = Unspent(stopped, questions, budget - rollouts, budget, round(saved))
    return GenerationSummary(output, questions, rollouts, 0, tokens, truncated, (), 0.0, unspent)
