"""When confidence helps: AUROC of confidence against correctness, from the saved rollouts of runs.

For every question family (``source``), measure and region, block by block of steps. ``pooled`` compares the
rollouts of all questions of a step, and also rewards knowing which questions are easy; ``within`` compares
the rollouts of one question, which is all that a vote among them can use. 0.5 is chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dttrl.analysis.accuracy import known_mean
from dttrl.analysis.blocks import STEPS, spans
from dttrl.analysis.frames import frame
from dttrl.analysis.grouping import RunGroup
from dttrl.analysis.runs import rollout_files
from dttrl.analysis.step_rollouts import StepQuestion, step_questions
from dttrl.answers.extraction import extract
from dttrl.confidence import Measure, Region, trajectory_confidence
from dttrl.errors import InputError
from dttrl.rollouts import table_to_rollouts
from dttrl.separation import auroc

MEASURES: tuple[Measure, ...] = ("topk", "logprob", "perplexity", "entropy")
REGIONS = ("last-step", "all")
_TEXT = ("text", "token_offset", "token_confidence", "token_logprob", "token_entropy", "token_self_certainty")

Key = tuple[str, str, str]
"""Source, measure, region."""


@dataclass
class _Tally:
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
    tallies: dict[tuple[int, Key], _Tally] = {}
    done = 0
    for run in group.runs:
        if not rollout_files(run):
            raise InputError(f"{run}: kept no rollouts; train with --keep-rollouts to compare confidences")
        for questions in step_questions(run, columns=("query_id", "sample_id", *_TEXT), every=every):
            by_source: dict[str, list[StepQuestion]] = {}
            for question in questions:
                if question.correct_G is not None:
                    by_source.setdefault(question.source or group.questions, []).append(question)
            for source, members in by_source.items():
                _add_step(source, members, measures, parsed, tallies)
            done += len(questions)
            if progress is not None:
                progress(done)
    if not tallies:
        raise InputError(f"{group.runs[0]}: its questions have no gold answers, so nothing can be right")
    return frame(_rows(group, tallies, size))


def _add_step(
    source: str,
    questions: Sequence[StepQuestion],
    measures: Sequence[Measure],
    regions: dict[str, Region],
    tallies: dict[tuple[int, Key], _Tally],
) -> None:
    """Add one step's questions of a source, for every measure and region."""
    right = [question.correct_G for question in questions if question.correct_G is not None]
    right_N = np.concatenate(right)
    drawn = [table_to_rollouts(question.table) for question in questions]
    starts = [[extract(rollout.text).start for rollout in rollouts] for rollouts in drawn]
    for measure in measures:
        for name, region in regions.items():
            values: list[NDArray[np.float64]] = [
                np.array(
                    [
                        trajectory_confidence(rollout, region=region, measure=measure, answer_start=start)
                        for rollout, start in zip(rollouts, start_G, strict=True)
                    ]
                )
                for rollouts, start_G in zip(drawn, starts, strict=True)
            ]
            key = (questions[0].step, (source, measure, name))
            tally = tallies.setdefault(key, _Tally([], []))
            tally.pooled.append(auroc(np.concatenate(values), right_N))
            tally.within += [auroc(value_G, right_G) for value_G, right_G in zip(values, right, strict=True)]
            tally.n += right_N.size
            tally.right += int(right_N.sum())


def _rows(group: RunGroup, tallies: dict[tuple[int, Key], _Tally], size: int) -> Iterator[dict[str, Any]]:
    blocks = spans([step for step, _ in tallies], size)
    for key in dict.fromkeys(key for _, key in tallies):
        for span in blocks:
            inside = [t for (step, other), t in tallies.items() if other == key and span.holds(step)]
            if not inside:
                continue
            n = sum(tally.n for tally in inside)
            yield {
                **group.columns,
                **dict(zip(("source", "measure", "region"), key, strict=True)),
                **span.columns,
                "n": n,
                "accuracy": sum(tally.right for tally in inside) / n,
                "auroc": known_mean(value for tally in inside for value in tally.pooled),
                "auroc_within": known_mean(value for tally in inside for value in tally.within),
            }
