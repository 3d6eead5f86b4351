"""When confidence helps: AUROC of confidence against correctness, from the saved rollouts of runs.

For every question family (``source``), measure and region, block by block of steps. ``pooled`` compares the
rollouts of all questions of a step, and also rewards knowing which questions are easy; ``within`` compares
the rollouts of one question, which is all that a vote among them can use. 0.5 is chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dttrl.analysis.accuracy import known_mean
from dttrl.analysis.blocks import STEPS, spans
from dttrl.analysis.frames import frame
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.runs import rollout_files, scored_steps
from dttrl.answers.extraction import extract
from dttrl.data.rollouts import table_to_rollouts
from dttrl.errors import InputError
from dttrl.method.ballots import BoolArray, FloatArray
from dttrl.method.confidence import Measure, Region, trajectory_confidence
from dttrl.method.measure_choice import Candidate
from dttrl.method.scored import Scored
from dttrl.method.separation import auroc

MEASURES: tuple[Measure, ...] = ("topk", "logprob", "perplexity", "entropy")
REGIONS = ("last-step", "all")
TOKEN_VALUES = (
    "text",
    "token_offset",
    "token_confidence",
    "token_logprob",
    "token_entropy",
    "token_self_certainty",
)

"""Columns of rollouts from which confidences are computed."""

Key = tuple[str, str, str]
"""Source, measure, region."""


@dataclass
class _Gathered:
    pooled: list[float]
    within: list[float]
    n: int = 0
    right: int = 0


def confidence_quality(
    group: RunGroup,
    *,
    measures: Sequence[Measure] = MEASURES,
    regions: Sequence[str] = REGIONS,
    size: int = STEPS,
    every: int = 1,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Measure a group of runs: a row per source, measure, region and block.

    ``auroc`` is the mean over steps of the pooled AUROC, ``auroc_within`` the mean over questions of that
    within; NaN where none has rollouts of both kinds. ``every``: only every so many saved steps are read.
    Raises InputError where a run kept no rollouts or has no gold answers.
    """
    parsed = {str(Region.parse(text)): Region.parse(text) for text in regions}
    gathered: dict[tuple[int, Key], _Gathered] = {}
    done = 0
    for run in group.runs:
        if not rollout_files(run):
            raise InputError(f"{run}: kept no rollouts; train with --keep-rollouts to compare confidences")
        for scored in scored_steps(run, columns=TOKEN_VALUES, every=every):
            by_source: dict[str, list[int]] = {}
            for r in np.flatnonzero(scored.has_gold_R).tolist():
                by_source.setdefault(scored.source[r] or group.questions, []).append(r)
            for source, members in by_source.items():
                _add_step(source, scored.take(members), measures, parsed, gathered)
            done += len(scored.query_id)
            if progress is not None:
                progress(done)
    if not gathered:
        raise InputError(f"{group.runs[0]}: its questions have no gold answers, so nothing can be right")
    return frame(_rows(group, gathered, size))


def _add_step(
    source: str,
    scored: Scored,
    measures: Sequence[Measure],
    regions: dict[str, Region],
    gathered: dict[tuple[int, Key], _Gathered],
) -> None:
    """Add one step's questions of a source, for every measure and region."""
    right_RN = scored.correct_RN
    tried = [Candidate(measure, region) for measure in measures for region in regions.values()]
    values = measured_confidences(scored.rows, right_RN.shape, tried)
    for (measure, region), value_RN in zip(tried, values, strict=True):
        key = (scored.step or 0, (source, measure, str(region)))
        part = gathered.setdefault(key, _Gathered([], []))
        part.pooled.append(auroc(value_RN.ravel(), right_RN.ravel()))
        part.within += within(value_RN, right_RN)
        part.n += right_RN.size
        part.right += int(right_RN.sum())


def measured_confidences(
    rows: pa.Table, shape: tuple[int, ...], tried: Iterable[Candidate]
) -> Iterator[FloatArray]:
    """Yield the confidences (R, N) of the rows' rollouts for each measure and region."""
    rollouts = table_to_rollouts(rows)
    starts = [extract(rollout.text).start for rollout in rollouts]
    for measure, region in tried:
        values = [
            trajectory_confidence(rollout, region=region, measure=measure, answer_start=start)
            for rollout, start in zip(rollouts, starts, strict=True)
        ]
        yield np.reshape(values, shape)


def within(value_RN: FloatArray, positive_RN: BoolArray) -> list[float]:
    """Return the AUROC within each question; NaN where its rollouts are all of one kind."""
    return [auroc(value_N, positive_N) for value_N, positive_N in zip(value_RN, positive_RN, strict=True)]


def _rows(group: RunGroup, gathered: dict[tuple[int, Key], _Gathered], size: int) -> Iterator[dict[str, Any]]:
    blocks = spans([step for step, _ in gathered], size)
    for key in dict.fromkeys(key for _, key in gathered):
        for span in blocks:
            inside = [part for (step, other), part in gathered.items() if other == key and span.holds(step)]
            if not inside:
                continue
            n = sum(part.n for part in inside)
            yield {
                **group.columns,
                **dict(zip(("source", "measure", "region"), key, strict=True)),
                **span.columns,
                "n": n,
                "accuracy": sum(part.right for part in inside) / n,
                "auroc": known_mean(value for part in inside for value in part.pooled),
                "auroc_within": known_mean(value for part in inside for value in part.within),
            }
