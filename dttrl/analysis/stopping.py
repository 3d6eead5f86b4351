"""What stopping when sure would have saved: the rule of sampling, on rollouts that are all there.

The questions of a file take their rollouts in blocks (:mod:`dttrl.method.settling`), and the latent vote is
taken on what they have then. That is what sampling with the same range and threshold would have drawn, as a
sample does not depend on how many others there are. Repeats after the first take each question's rollouts in
another order. Axis letters: R questions, N rollouts of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dttrl.analysis.frames import frame
from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.errors import InputError
from dttrl.method.ballots import BoolArray, FloatArray, IntArray
from dttrl.method.latent import fit_latent, summed
from dttrl.method.scored import Scored
from dttrl.method.settling import draw_until_sure, first_rollouts
from dttrl.method.voting.latent_vote import latent_vote
from dttrl.method.voting.majority import majority
from dttrl.ranges import SURE, SampleRange
from dttrl.rng import derive
from dttrl.scoring.score import stored_kind
from dttrl.scoring.scored_files import column_floats, read_scored

THRESHOLDS = (0.8, SURE, 0.95, 0.99)
LEAST = 8
"""Rollouts of a block where none is given."""


@dataclass(frozen=True)
class Simulated:
    """How stopping went; arrays are (R,), the questions of all blocks in their order."""

    n_drawn_R: IntArray
    """Rollouts that each question took."""
    winner_R: IntArray
    """Class of the latent vote on these; -1 where there is no answer."""
    probability_R: FloatArray
    """That it is right, by its posterior; NaN where there is no answer."""
    right_R: BoolArray
    """Whether it is right; False without gold."""
    sure_R: BoolArray
    """Whether the question stopped before the most rollouts."""


def simulate_stopping(blocks: Sequence[Scored], least: int, most: int, until: float | None) -> Simulated:
    """Stop the questions of ``blocks`` in sample order; ``until`` None lets each take ``most`` rollouts.

    InputError where a question has fewer than ``most`` rollouts or the range is none.
    """
    fewest = min(int(block.n_drawn_R.min()) for block in blocks)
    if most > fewest:
        raise InputError(f"a question has {fewest} rollouts, so stopping cannot be tried up to {most}")
    every = Scored(
        np.concatenate([block.class_RN[:, :most] for block in blocks]),
        np.concatenate([block.confidence_RN[:, :most] for block in blocks]),
    )
    n_drawn_R = np.full(len(every.class_RN), most, dtype=np.int32)
    if until is not None:
        try:
            budget = SampleRange(least, most)
        except ValueError as error:
            raise InputError(str(error)) from None
        n_drawn_R = draw_until_sure(
            len(every.class_RN), budget, until, lambda *_: None, lambda size_R: first_rollouts(every, size_R)
        )
    drawn = first_rollouts(every, n_drawn_R)
    latent = fit_latent(summed(drawn.class_RN, drawn.confidence_RN))
    vote, probability_R = latent_vote(drawn.class_RN, drawn.confidence_RN, latent)
    bounds = np.cumsum([len(block.class_RN) for block in blocks])[:-1]
    right = [
        block.right(winner_B[:, None])[:, 0]
        for block, winner_B in zip(blocks, np.split(vote.winner_R, bounds), strict=True)
    ]
    return Simulated(n_drawn_R, vote.winner_R, probability_R, np.concatenate(right), n_drawn_R < most)


@dataclass(frozen=True)
class _File:
    """The complete rollouts of one file; ``tokens_RN`` is None where the file does not say."""

    name: str
    blocks: list[Scored]
    most: int
    graded_R: BoolArray
    tokens_RN: FloatArray | None


def stopping_table(
    paths: Sequence[Path],
    *,
    samples: str | None = None,
    thresholds: Sequence[float] | None = None,
    repeats: int = 1,
    kind: str | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Return a row per file and threshold: accuracy with all rollouts and with stopping, and what was spent.

    ``samples`` is a range as 8..64 (default: 8 to the rollouts that every question of a file has).
    Accuracies are over the questions with a gold answer, means over ``repeats`` orders of the rollouts; NaN
    without gold. ``rollouts`` and ``tokens`` are shares of all. ``progress`` is told of simulations done.
    """
    least, most = LEAST, None
    if samples is not None:
        try:
            asked = SampleRange.parse(samples)
        except ValueError as error:
            raise InputError(f"--samples: {error}") from None
        least, most = asked.least, asked.most
    thresholds = thresholds or THRESHOLDS
    if not all(0 < until < 1 for until in thresholds):
        raise InputError("--until is a probability between 0 and 1")
    rows: list[dict[str, Any]] = []
    for path in dict.fromkeys(paths):
        file = _read(path, most, kind)
        found: dict[float, list[dict[str, float]]] = {until: [] for until in thresholds}
        for repeat in range(repeats):
            blocks, tokens_RN = _ordered(file, repeat, seed)
            plain_R = _plain(blocks, file.most)
            whole = simulate_stopping(blocks, least, file.most, None)
            for until in thresholds:
                stopped = simulate_stopping(blocks, least, file.most, until)
                found[until].append(_measures(file, plain_R, whole, stopped, tokens_RN))
                if progress is not None:
                    progress(sum(map(len, found.values())))
        rows += [
            {
                "file": file.name, "questions": len(file.graded_R), "samples": f"{least}..{file.most}",
                "until": until,
                **{name: float(np.mean([measure[name] for measure in each])) for name in each[0]},
            }
            for until, each in found.items()
        ]  # fmt: skip
    return frame(rows)


def _read(path: Path, most: int | None, kind: str | None) -> _File:
    files = RolloutFiles([path])
    files.require("answer")
    counted = "num_tokens" in files.column_names
    with Grader(kind=kind or stored_kind(files.metadata)) as grader:
        blocks = list(read_scored(files, grader=grader, columns=("num_tokens",)))
    steps = {block.step for block in blocks}
    if len(steps) > 1:
        raise InputError(
            f"{path}: rollouts of {len(steps)} training steps are of as many models; give one step's file"
        )
    fewest = min(int(block.n_drawn_R.min()) for block in blocks)
    most = fewest if most is None else most
    if most > fewest:
        raise InputError(f"{path}: a question has {fewest} rollouts; give --samples up to {fewest} or less")
    tokens_RN = None
    if counted:
        parts = [
            column_floats(block.rows["num_tokens"], "num_tokens").reshape(block.class_RN.shape)
            for block in blocks
        ]
        tokens_RN = np.concatenate([part_RN[:, :most] for part_RN in parts])
    graded_R = np.concatenate([block.has_gold_R for block in blocks])
    return _File(path.stem, blocks, most, graded_R, tokens_RN)


def _ordered(file: _File, repeat: int, seed: int) -> tuple[list[Scored], FloatArray | None]:
    """Return the first rollouts of each question in sample order, or from the second repeat on in another."""
    rng = derive(seed, step=repeat, query=file.name, purpose="stopping")
    blocks, orders = [], []
    for block in file.blocks:
        order_RN = np.tile(np.arange(file.most), (len(block.class_RN), 1))
        if repeat:
            order_RN = rng.permuted(order_RN, axis=1)
        orders.append(order_RN)
        class_RN = np.take_along_axis(block.class_RN, order_RN, axis=1)
        confidence_RN = np.take_along_axis(block.confidence_RN, order_RN, axis=1)
        blocks.append(replace(block, class_RN=class_RN, confidence_RN=confidence_RN))
    if file.tokens_RN is None:
        return blocks, None
    return blocks, np.take_along_axis(file.tokens_RN, np.concatenate(orders), axis=1)


def _plain(blocks: Sequence[Scored], most: int) -> BoolArray:
    """Whether the plain vote on all rollouts is right."""
    right = []
    for block in blocks:
        vote = majority(block.class_RN[:, :most], block.confidence_RN[:, :most])
        right.append(block.right(vote.winner_R[:, None])[:, 0])
    return np.concatenate(right)


def _measures(
    file: _File, plain_R: BoolArray, whole: Simulated, stopped: Simulated, tokens_RN: FloatArray | None
) -> dict[str, float]:
    def share(right_R: NDArray[np.bool_]) -> float:
        return float(right_R[file.graded_R].mean()) if file.graded_R.any() else float("nan")

    spent_RN = np.arange(file.most) < stopped.n_drawn_R[:, None]
    tokens = float("nan") if tokens_RN is None else float(tokens_RN[spent_RN].sum() / tokens_RN.sum())
    return {
        "plain": share(plain_R),
        "accuracy": share(whole.right_R),
        "accuracy_stopped": share(stopped.right_R),
        "stopped": float(stopped.sure_R.mean()),
        "rollouts": float(spent_RN.mean()),
        "tokens": tokens,
    }
