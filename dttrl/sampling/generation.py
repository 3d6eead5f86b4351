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

import pyarrow as pa
import pyarrow.compute as pc

from dttrl.data.outputs import check_new_file
from dttrl.data.questions import Question
from dttrl.data.tables import TableWriter
from dttrl.errors import InputError
from dttrl.sampling.base import OpenedBackend, SampleRequest, fitting
from dttrl.sampling.opening import open_backend
from dttrl.sampling.parts import Parts
from dttrl.sampling.prompts import load_questions, settings_metadata
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.sections import Generation, Sampling


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


def generate_rollouts(
    questions: Sequence[Question],
    output: Path,
    opened: OpenedBackend,
    generation: Generation,
    settings: Sampling,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationSummary:
    """Sample the rollouts of each question into ``output``, continuing what earlier calls began.

    The backend's files and metadata must be those of the parts. ``progress`` is called with the rollouts that
    are finished and how many there will be; the first call counts what was there. With ``overwrite`` an
    existing output is replaced at the end, and parts of other settings are discarded.
    """
    if not questions:
        raise InputError("no question to sample; the question file is empty")
    check_new_file(output, overwrite=overwrite)
    began = time.monotonic()
    by_id = {question.id: question for question in questions}
    samples, keep_tokens = generation.samples, generation.keep_tokens
    full = {**opened.metadata, **settings_metadata(settings), "keep_tokens": keep_tokens}
    total, sampled = samples * len(by_id), 0
    with Parts(output, {**full, "model_files": opened.files}, keep_tokens=keep_tokens) as parts:
        try:
            held = parts.open(by_id)
        except InputError:
            if not overwrite:
                raise
            parts.discard()
            held = {}
        requests = _requests(by_id, samples, held, opened.encode)
        missing = sum(len(request.sample_ids) for request in requests if not request.held)
        if progress is not None:
            progress(total - missing, total)
        try:
            for rollouts in opened.sampler.sample(requests, settings) if missing else ():
                parts.add(rollouts, by_id)
                sampled += len(rollouts)
                if progress is not None:
                    progress(total - missing + sampled, total)
        finally:  # also on Ctrl-C: finished questions are kept
            parts.flush(by_id)
        tokens, truncated = _join(parts.groups(by_id, samples), output, full, overwrite=overwrite)
        parts.remove()
    seconds = time.monotonic() - began
    return GenerationSummary(output, len(by_id), total, sampled, tokens, truncated, (), seconds)


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
        questions, output, opened, config.generation, settings, overwrite=overwrite, progress=progress
    )
    return replace(summary, skipped=tuple(skipped))


def _requests(
    questions: Mapping[str, Question],
    samples: int,
    held: Mapping[str, set[int]],
    encode: Callable[[Question], Sequence[int]],
) -> list[SampleRequest]:
    """Return a request a question, in id order: its missing samples, or all of them as held.

    Held questions keep their places in the batches, so that the others are decoded in the same company.
    """
    requests = []
    for query_id in sorted(questions):
        ids = tuple(range(samples))
        missing = tuple(i for i in ids if i not in held.get(query_id, ()))
        prompt = tuple(encode(questions[query_id]))
        requests.append(SampleRequest(query_id, prompt, missing or ids, held=not missing))
    return requests


def _join(
    groups: Iterator[pa.Table], output: Path, metadata: Mapping[str, object], *, overwrite: bool
) -> tuple[int, int]:
    """Write the questions as one file; returns its number of tokens and of rollouts cut at the limit."""
    tokens = truncated = 0
    first = next(groups)
    with TableWriter(output, first.schema, metadata=metadata, overwrite=overwrite) as writer:
        for table in itertools.chain([first], groups):
            tokens += int(pc.sum(table.column("num_tokens")).as_py() or 0)
            truncated += int(pc.sum(pc.equal(table.column("finish_reason"), "length")).as_py() or 0)
            writer.write(table)
    return tokens, truncated
