"""Accuracy of voting methods against the voting budget, from saved rollouts (tab:budget_scaling).

For a budget b, b of a question's N saved rollouts are drawn without replacement, a number of times, and every
method votes on the same draws. The draws of a repeat are nested: the smaller budget is part of the larger.
With b = N there is one draw only. A budget above N is left out, never extrapolated. Intervals are percentile
bootstraps over both questions and repeats. Axis letters: B questions, R repeats, N rollouts of a draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dttrl.analysis.accuracy import Estimate
from dttrl.analysis.frames import frame
from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.errors import InputError
from dttrl.method.ballots import BoolArray, FloatArray, IntArray
from dttrl.method.scored import NO_ROWS, Scored
from dttrl.method.voting.registry import METHODS, ParsedMethod, parse_method
from dttrl.rng import derive
from dttrl.scoring.score import stored_kind
from dttrl.scoring.scored_files import read_scored
from dttrl.scoring.vote import expand, has_confidence, vote_weights

BUDGETS = (8, 16, 32, 64, 128, 256)
"""Budgets of the paper's table."""
PAPER_METHODS = ("mob", "bon", "sc", "wsc", "deepconf", "distrivoting")
"""Methods of the paper's table, in its order."""
_CHUNK = 2**20  # rollouts voted on at once

Parsed = list[tuple[str, ParsedMethod]]


@dataclass(frozen=True)
class Benchmark:
    """The questions of one file that have a gold answer, in blocks whose confidences are vote weights."""

    name: str
    blocks: list[Scored]
    has_confidence: bool
    without_gold: int = 0

    @property
    def questions(self) -> int:
        """How many there are."""
        return sum(len(block.query_id) for block in self.blocks)

    @property
    def poorest(self) -> tuple[int, str]:
        """The fewest rollouts of a question, and the first question that has so few."""
        block = min(self.blocks, key=lambda block: block.class_RN.shape[1])
        return block.class_RN.shape[1], block.query_id[0]


@dataclass(frozen=True)
class BudgetTable:
    """A row per budget, method and benchmark, and what was left out and why.

    ``repeats`` are distinct draws: 1 where the budget is all there is.
    """

    cells: pd.DataFrame
    notes: list[str]


def read_benchmark(
    path: Path, *, methods: Sequence[str] = PAPER_METHODS, kind: str | None = None
) -> Benchmark:
    """Read the scored rollouts of one file or folder of parts.

    Raises :class:`InputError` where no question has a gold answer, where the rollouts are of several training
    steps, and for negative confidences that a method would sum.
    """
    files = RolloutFiles([path])
    files.require("answer", "gold")
    needed = any(method.needs_weights for _, method in _parse(methods))
    blocks, steps, without_gold = [], set(), 0
    with Grader(kind=kind or stored_kind(files.metadata)) as grader:
        for scored in read_scored(files, grader=grader):
            steps.add(scored.step)
            weight_RN = vote_weights(scored, needed=needed)
            graded = np.flatnonzero(scored.has_gold_R).tolist()
            without_gold += len(scored.query_id) - len(graded)
            if graded:
                blocks.append(replace(scored, confidence_RN=weight_RN, rows=NO_ROWS).take(graded))
    if len(steps) > 1:
        raise InputError(
            f"{path}: rollouts of {len(steps)} training steps are of as many models; give one step's file"
        )
    if not blocks:
        raise InputError(f"{path}: no question has a gold answer, so there is no accuracy to compute")
    return Benchmark(path.stem, blocks, has_confidence(files), without_gold)


def budget_table(
    benchmarks: Sequence[Benchmark],
    *,
    methods: Sequence[str] = PAPER_METHODS,
    budgets: Sequence[int] | None = None,
    repeats: int = 64,
    seed: int = 0,
    workers: int = 2,
    progress: Callable[[int], None] | None = None,
) -> BudgetTable:
    """Return accuracy with its interval for every budget, method and benchmark.

    ``budgets`` (default: the paper's) that a benchmark's samples do not reach are left out of it with a note;
    raises :class:`InputError` where nothing is left, and for methods that do not vote question by question.
    ``progress`` is told the number of votes done.
    """
    parsed = _parse(methods)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    votes = 0

    def tell(count: int) -> None:
        nonlocal votes
        votes += count
        if progress is not None:
            progress(votes)

    names = [benchmark.name for benchmark in benchmarks]
    if len(set(names)) < len(names):
        raise InputError(f"several benchmarks have one name: {', '.join(names)}; rename the files")
    for benchmark in benchmarks:
        if benchmark.without_gold:
            notes.append(
                f"{benchmark.name}: {benchmark.without_gold} questions without a gold answer are left out"
            )
        chosen = _reachable(benchmark, budgets, notes)
        standing = _able(benchmark, parsed, notes)
        if not chosen or not standing:
            continue
        grid = _grid(benchmark, standing, chosen, repeats=repeats, seed=seed, workers=workers, tell=tell)
        weights = _bootstrap(benchmark, repeats, seed)
        for budget in chosen:
            for name, _ in standing:
                right_BR, tie_BR = grid[budget, name]
                rows.append({
                    "budget": budget,
                    "method": name,
                    "benchmark": benchmark.name,
                    "accuracy": _estimate(right_BR, weights),
                    "tie_rate": tie_BR.mean(),
                    "questions": right_BR.shape[0],
                    "repeats": right_BR.shape[1],
                })  # fmt: skip
    if not rows:
        reach = ", ".join(f"{benchmark.name}: {benchmark.poorest[0]}" for benchmark in benchmarks)
        raise InputError(
            f"every budget exceeds the samples ({reach} for the question with the fewest): nothing is "
            "extrapolated; give smaller --budget or more samples"
        )
    return BudgetTable(frame(rows), notes)


def draws(
    query_id: str, size: int, budgets: Sequence[int], *, repeats: int, seed: int
) -> list[NDArray[np.int64]]:
    """Return for each budget the positions of that many of a question's rollouts, (R, budget), ascending.

    They depend on seed, question and its ``size`` alone; of two budgets the larger draw contains the smaller.
    A budget of all rollouts has one draw.
    """
    rng = derive(seed, query=query_id, purpose="budget-scaling")
    order_RN = rng.permuted(np.tile(np.arange(size), (repeats, 1)), axis=1)
    return [
        np.arange(size)[None, :] if budget >= size else np.sort(order_RN[:, :budget], axis=1)
        for budget in budgets
    ]


def _parse(names: Sequence[str]) -> Parsed:
    parsed = [(name, parse_method(name)) for name in expand(names)]
    possible = [info.name for info in METHODS.values() if not info.pooled or info.build_many]
    if "all" in names:
        return [(name, method) for name, method in parsed if method.info.name in possible]
    for name, method in parsed:
        if method.info.name not in possible:
            raise InputError(f"method {name} has no budget table; these have: {', '.join(possible)}")
    return parsed


def _reachable(benchmark: Benchmark, budgets: Sequence[int] | None, notes: list[str]) -> list[int]:
    asked = sorted(set(BUDGETS if budgets is None else budgets))
    if asked and asked[0] < 1:
        raise InputError(f"a budget must be at least 1 rollout, got {asked[0]}")
    fewest, poorest = benchmark.poorest
    beyond = [budget for budget in asked if budget > fewest]
    if beyond:
        notes.append(
            f"{benchmark.name}: question {poorest!r} has {fewest} rollouts; "
            f"left out, not extrapolated: budget {', '.join(map(str, beyond))}"
        )
    return [budget for budget in asked if budget <= fewest]


def _able(benchmark: Benchmark, parsed: Parsed, notes: list[str]) -> Parsed:
    if benchmark.has_confidence:
        return parsed
    left = [name for name, method in parsed if method.info.needs_confidence]
    if left:
        notes.append(f"{benchmark.name}: no confidences, left out: {', '.join(left)}")
    return [(name, method) for name, method in parsed if not method.info.needs_confidence]


_Grid = dict[tuple[int, str], tuple[BoolArray, BoolArray]]


def _grid(
    benchmark: Benchmark,
    methods: Parsed,
    budgets: Sequence[int],
    *,
    repeats: int,
    seed: int,
    workers: int,
    tell: Callable[[int], None],
) -> _Grid:
    """Whether each method is right, and tied, on every draw of every question: (B, R) each."""
    alone = [(name, method) for name, method in methods if not method.info.pooled]

    def vote(part: Scored) -> _Grid:
        found: _Grid = {}
        for budget, class_BRN, weight_BRN in _drawn(part, budgets, repeats=repeats, seed=seed):
            _, n_draws, width = class_BRN.shape
            class_RN, weight_RN = class_BRN.reshape(-1, width), weight_BRN.reshape(-1, width)
            for name, method in alone:
                result = method.vote(class_RN, weight_RN).vote
                right_BR = part.right(result.winner_R.reshape(-1, n_draws))
                found[budget, name] = right_BR, result.tie_R.reshape(-1, n_draws)
        return found

    share = -(-benchmark.questions // max(workers, 1))
    size = min(share, max(1, _CHUNK // (max(budgets) * repeats)))
    parts = [
        block.take(range(first, min(first + size, len(block.query_id))))
        for block in benchmark.blocks
        for first in range(0, len(block.query_id), size)
    ]
    results: list[_Grid] = []
    grid: _Grid = {}
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        together = pool.submit(_pooled_grid, benchmark, methods, budgets, repeats=repeats, seed=seed)
        for found in pool.map(vote, parts):
            results.append(found)
            tell(sum(right_BR.size for right_BR, _ in found.values()))
        grid |= together.result()
    tell(sum(right_BR.size for right_BR, _ in grid.values()))
    for key in results[0]:
        # A question that has just the budget has one draw, which stands for all repeats of the others.
        width = max(found[key][0].shape[1] for found in results)
        right, tie = (
            np.concatenate([np.broadcast_to(found[key][k], (len(found[key][k]), width)) for found in results])
            for k in (0, 1)
        )
        grid[key] = right, tie
    return grid


def _drawn(
    part: Scored, budgets: Sequence[int], *, repeats: int, seed: int
) -> Iterator[tuple[int, IntArray, FloatArray]]:
    """Yield each budget with the classes and confidences of its draws, (B, R, N)."""
    size = part.class_RN.shape[1]
    picked = [draws(name, size, budgets, repeats=repeats, seed=seed) for name in part.query_id]
    for i, budget in enumerate(budgets):
        order_BRN = np.stack([orders[i] for orders in picked])
        yield (
            budget,
            np.take_along_axis(part.class_RN[:, None], order_BRN, axis=2),
            np.take_along_axis(part.confidence_RN[:, None], order_BRN, axis=2),
        )


def _pooled_grid(
    benchmark: Benchmark, methods: Parsed, budgets: Sequence[int], *, repeats: int, seed: int
) -> _Grid:
    """:func:`_grid` of the methods that are fitted to all questions: draw by draw, a fit each."""
    together = [
        (name, method.info.build_many(method.parameters))
        for name, method in methods
        if method.info.build_many is not None
    ]
    found: _Grid = {}
    if not together:
        return found
    drawn = [list(_drawn(block, budgets, repeats=repeats, seed=seed)) for block in benchmark.blocks]
    ends = np.cumsum([len(block.query_id) for block in benchmark.blocks])[:-1]
    for i, budget in enumerate(budgets):
        n_draws = max(parts[i][1].shape[1] for parts in drawn)
        class_FRN = _draws_first([parts[i][1] for parts in drawn], n_draws)
        weight_FRN = _draws_first([parts[i][2] for parts in drawn], n_draws)
        chunk = max(1, _CHUNK // (class_FRN.shape[1] * budget))
        for name, vote in together:
            votes = [
                vote(class_FRN[first : first + chunk], weight_FRN[first : first + chunk])
                for first in range(0, n_draws, chunk)
            ]
            winner_BR, tie_BR = (
                np.concatenate([getattr(vote, field) for vote in votes]).reshape(n_draws, -1).T
                for field in ("winner_R", "tie_R")
            )
            right_BR = np.concatenate(
                [
                    block.right(winner)
                    for block, winner in zip(benchmark.blocks, np.split(winner_BR, ends), strict=True)
                ]
            )
            found[budget, name] = right_BR, tie_BR
    return found


def _draws_first(parts: Sequence[NDArray[Any]], n_draws: int) -> NDArray[Any]:
    """Join (B, R, N) of several blocks as (R, B, N); a block that has a single draw repeats it."""
    wide = [np.broadcast_to(part, (len(part), n_draws, part.shape[2])) for part in parts]
    return np.concatenate(wide).swapaxes(0, 1)


def _bootstrap(
    benchmark: Benchmark, repeats: int, seed: int, size: int = 2000
) -> tuple[FloatArray, FloatArray]:
    """How often each question and each repeat is drawn in ``size`` bootstraps, the same for all cells."""
    rng = derive(seed, query=benchmark.name, purpose="budget-interval")
    counts = [
        rng.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64) / n
        for n in (benchmark.questions, repeats)
    ]
    return counts[0], counts[1]


def _estimate(right_BR: BoolArray, weights: tuple[FloatArray, FloatArray]) -> Estimate:
    """Mean with a 95 % interval that draws questions and repeats anew, both with replacement."""
    question_KB, repeat_KR = weights
    value_BR = right_BR.astype(np.float64)
    by_repeat_KR = question_KB @ value_BR
    means_K = by_repeat_KR[:, 0] if value_BR.shape[1] == 1 else (by_repeat_KR * repeat_KR).sum(axis=1)
    return Estimate.of_draws(value_BR.mean(), means_K)
