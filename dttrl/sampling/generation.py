"""Generation: questions -> rollouts on disk, in parts, so that interrupted work goes on where it stopped.

Finished rollouts are written as small Parquet files into ``<output>.parts/`` and joined at the end. The same
command run again samples only the (question, sample) pairs that no part holds; since a sample depends on
the seed, the question and its number alone, the result is what an uninterrupted run would have written. Parts
that were made with other settings or other questions are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dttrl.config import GenerateConfig
from dttrl.errors import InputError, OutputExistsError
from dttrl.questions import Question
from dttrl.sampling.base import Sampler, SampleRequest
from dttrl.sampling.configured import (
    configured_questions,
    prompt_encoder,
    prompt_metadata,
    sampling_settings,
    settings_metadata,
    transformers_metadata,
)
from dttrl.sampling.parts import Parts
from dttrl.sampling.settings import SamplingSettings
from dttrl.tables import TableWriter

if TYPE_CHECKING:
    from dttrl.sampling.models import LoadedModel


@dataclass(frozen=True)
class GenerationSummary:
    """What a generate command did; ``sampled`` of ``rollouts`` were drawn now, the rest were there."""

    output: Path
    questions: int
    rollouts: int
    sampled: int
    tokens: int
    truncated: int
    seconds: float


def check_output(output: Path, *, overwrite: bool) -> None:
    """Raise before a model is loaded when the result could not be written."""
    if output.exists() and not overwrite:
        raise OutputExistsError(f"{output} exists; give --overwrite to replace it or choose another name")
    if not output.absolute().parent.is_dir():
        raise InputError(f"{output}: the folder {output.absolute().parent} does not exist; create it first")


def generate_rollouts(
    questions: Sequence[Question],
    output: Path,
    *,
    samples: int,
    sampler: Sampler,
    settings: SamplingSettings,
    encode: Callable[[Question], Sequence[int]],
    metadata: Mapping[str, object],
    keep_tokens: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationSummary:
    """Sample ``samples`` rollouts of each question into ``output``, continuing what earlier calls began.

    ``encode`` turns a question into the prompt's token ids. ``progress`` is called with the rollouts that are
    finished and how many there will be; the first call counts what was there. With ``overwrite`` an existing
    output is replaced at the end, and parts of other settings are discarded.
    """
    if samples < 1:
        raise InputError(f"--samples must be at least 1, not {samples}")
    check_output(output, overwrite=overwrite)
    began = time.monotonic()
    by_id = {question.id: question for question in questions}
    full = {**metadata, **settings_metadata(settings), "keep_tokens": keep_tokens}
    parts = Parts(output, full, keep_tokens=keep_tokens)
    held = _open(parts, by_id, overwrite=overwrite)
    requests = [
        SampleRequest(query_id, tuple(encode(by_id[query_id])), tuple(missing))
        for query_id in sorted(by_id)
        if (missing := [i for i in range(samples) if i not in held.get(query_id, set())])
    ]
    total = samples * len(by_id)
    done = total - sum(len(request.sample_ids) for request in requests)
    if progress is not None:
        progress(done, total)
    sampled = 0
    try:
        for rollouts in sampler.sample(requests, settings) if requests else ():
            parts.add(rollouts, by_id)
            sampled += len(rollouts)
            if progress is not None:
                progress(done + sampled, total)
    finally:  # also on Ctrl-C: finished questions are kept
        parts.flush(by_id)
    tokens, truncated = _join(parts, output, dict.fromkeys(by_id, samples), full, overwrite=overwrite)
    parts.remove()
    return GenerationSummary(
        output, len(by_id), total, sampled, tokens, truncated, seconds=time.monotonic() - began
    )


def generate(
    config: GenerateConfig,
    output: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> GenerationSummary:
    """Do what ``config`` says: read the questions, load the model, sample into ``output``."""
    check_output(output, overwrite=overwrite)
    questions = configured_questions(config, limit=config.limit)
    sampler, loaded, backend = _backend(config)
    return generate_rollouts(
        questions,
        output,
        samples=config.samples,
        sampler=sampler,
        settings=sampling_settings(config, seed=config.seed),
        encode=prompt_encoder(config, loaded),
        metadata={**backend, **prompt_metadata(config, loaded)},
        keep_tokens=config.keep_tokens,
        overwrite=overwrite,
        progress=progress,
    )


def _backend(config: GenerateConfig) -> tuple[Sampler, LoadedModel, dict[str, object]]:
    """Load the model into the sampler that ``config.backend`` names; returns its part of the metadata too."""
    import torch

    from dttrl.sampling.models import load_model, resolve_device, resolve_dtype
    from dttrl.sampling.transformers import TransformersSampler

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device)
    loaded = load_model(
        config.model,
        device=device,
        dtype=dtype,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )
    sampler = TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids)
    return sampler, loaded, transformers_metadata(dtype)


def _open(parts: Parts, questions: Mapping[str, Question], *, overwrite: bool) -> dict[str, set[int]]:
    try:
        return parts.open(questions)
    except InputError:
        if not overwrite:
            raise
        parts.remove()
        return parts.open(questions)


def _join(
    parts: Parts, output: Path, wanted: Mapping[str, int], metadata: Mapping[str, object], *, overwrite: bool
) -> tuple[int, int]:
    """Write the parts as one file; returns its number of tokens and of rollouts cut at the length limit."""
    tokens = truncated = 0
    groups = parts.groups(wanted)
    first = next(groups, None)
    if first is None:
        raise InputError("no question to sample; the question file is empty")
    with TableWriter(output, first.schema, metadata=metadata, overwrite=overwrite) as writer:
        for table in _chain(first, groups):
            query_id = table.column("query_id")[0].as_py()
            if table.num_rows != wanted[query_id]:
                raise InputError(
                    f"{parts.folder}: question {query_id!r} has {table.num_rows} samples of "
                    f"{wanted[query_id]}; run the same command again"
                )
            tokens += int(pc.sum(table.column("num_tokens")).as_py() or 0)
            truncated += int(pc.sum(pc.equal(table.column("finish_reason"), "length")).as_py() or 0)
            writer.write(table)
    return tokens, truncated


def _chain(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest
