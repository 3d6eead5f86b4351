"""What a training run came to: run folder -> its accuracies, metrics, times, checkpoints and warnings.

Made from ``config.yaml``, ``metrics.jsonl``, ``evaluations.parquet`` and ``checkpoints/*/state.json``; what
is missing is left out. A step trains on other questions than the step before, so single steps are not
compared: the metrics are means over the first and over the last steps (:data:`WINDOW`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dttrl.analysis.accuracy import Accuracy, Estimate, summarize_split
from dttrl.analysis.checkpoint_choice import evaluated_accuracy, run_standings
from dttrl.analysis.runs import read_config, read_metrics, read_scores
from dttrl.method.first_votes import best_standing
from dttrl.method.methods import titled

WINDOW = 5
"""Steps of the first and of the last mean; half of the steps where a run has fewer than twice as many."""
NO_ANSWERS = 0.9
"""Share of rollouts without an answer above which something is wrong with prompt, length or kind."""


@dataclass(frozen=True)
class SplitChange:
    """One split's accuracy at the first and at the last evaluated step."""

    split: str
    first_step: int
    last_step: int
    first: Accuracy
    last: Accuracy

    def rows(self, *, passes: bool) -> list[list[str]]:
        """Return what is shown of it: measure, before, after and change; ``passes``: with pass@k."""
        both = [k for k in self.last.pass_at if passes and k > 1 and k in self.first.pass_at]
        n = self.last.n_label
        names = [f"avg@{n}", f"maj@{n}", *(f"pass@{k}" for k in both), "majority ratio"]
        ends = [
            [end.average, end.majority, *map(end.pass_at.get, both), Estimate(end.majority_ratio)]
            for end in (self.first, self.last)
        ]
        return [
            [f"{self.split}: {name}", str(before), str(after), f"{after.value - before.value:+.3f}"]
            for name, before, after in zip(names, *ends, strict=True)
            if not math.isnan(after.value - before.value)
        ]


@dataclass(frozen=True)
class SavedModel:
    """A checkpoint's model: the step after which it was saved, its folder, and its score where known.

    The score is avg@n on the held-out questions, else on the training ones. A run without gold answers has
    no score, and ``gain`` instead (:mod:`dttrl.method.first_votes`). ``path`` is None where it was not kept.
    """

    step: int
    path: Path | None
    score: float | None = None
    gain: float | None = None

    @property
    def worth(self) -> str:
        """The score, else the gain, as it is shown; "" where neither is known."""
        if self.score is not None:
            return f" (avg@n {self.score:.3f})"
        return "" if self.gain is None else f" (gain on the first votes {self.gain:+.3f})"


@dataclass(frozen=True)
class RunSummary:
    """What a run came to. ``first``, ``last`` and ``overall`` are means of metrics over steps.

    ``first`` and ``last`` are over ``window`` steps each, which never overlap unless there is one step only.
    ``seconds`` is the sum of the training steps, ``wall_seconds`` runs from the begin of the first to the end
    of the last and holds evaluations, checkpoints and pauses. ``best`` and ``final`` are the checkpoint of
    the best evaluation and the last one; both read gold answers for nothing but this choice. ``unaided`` is
    the step that would be chosen without gold answers; where there are none, ``best`` was chosen so.
    """

    run: Path
    settings: Mapping[str, Any]
    steps: int
    seconds: float
    wall_seconds: float | None
    ended: str | None
    splits: list[SplitChange]
    window: int
    first: dict[str, float]
    last: dict[str, float]
    overall: dict[str, float]
    best: SavedModel | None
    final: SavedModel | None
    unaided: SavedModel | None
    notes: list[str]

    @property
    def method(self) -> str:
        """The method as it is shown, with its label where that is not its own."""
        return titled(str(self.settings["method"]), self.settings.get("label"))

    @property
    def steps_label(self) -> str:
        """How many steps there were, in words."""
        return "1 step" if self.steps == 1 else f"{self.steps} steps"

    @property
    def window_label(self) -> str:
        """What ``first`` and ``last`` are means over: "first/last 5 steps", or "the only step"."""
        if self.steps == 1:
            return "the only step"
        return f"first/last {self.window} steps" if self.window > 1 else "first/last step"


def summarize_run(run: Path, *, seed: int = 0) -> RunSummary:
    """Summarize a run folder; ``seed`` is that of the bootstrap intervals."""
    settings = read_config(run)
    metrics = read_metrics(run)
    changes = []
    for split, scores in read_scores(run).items():
        ends = min(scores), max(scores)
        summaries = [summarize_split(scores[step], seed=seed, step=step, split=split) for step in ends]
        changes.append(SplitChange(split, *ends, *summaries))
    window = max(1, min(WINDOW, len(metrics) // 2))
    overall = _means(metrics)
    gold = bool(changes)
    best, final = _checkpoints(run, gold=gold)
    wall_seconds, ended = _wall_clock(metrics)
    return RunSummary(
        run=run,
        settings=settings,
        steps=len(metrics),
        seconds=sum(_seconds(record) for record in metrics),
        wall_seconds=wall_seconds,
        ended=ended,
        splits=changes,
        window=window,
        first=_means(metrics[:window]),
        last=_means(metrics[-window:]),
        overall=overall,
        best=best,
        final=final,
        unaided=_unaided(run),
        notes=_notes(overall),
    )


def _notes(overall: Mapping[str, float]) -> list[str]:
    """Say where a run cannot have learned anything, and what to look at."""
    no_answers = overall.get("no_answer_rate", 0.0)
    if no_answers > NO_ANSWERS:
        return [
            f"no answers found in {100 * no_answers:.0f} % of the rollouts: "
            "look at --max-new-tokens, --template, --kind"
        ]
    if overall.get("updates") == 0:
        return [
            "nothing was learned: no step changed the model, as all rollouts of a question had the same "
            f"reward ({100 * no_answers:.0f} % had no answer; look at --max-new-tokens, --template, --kind)"
        ]
    return []


def _checkpoints(run: Path, *, gold: bool) -> tuple[SavedModel | None, SavedModel | None]:
    """Return the best and the last checkpoint that are there, from the state that the last one holds."""
    states = {}
    for path in sorted((run / "checkpoints").glob("step-*/state.json")):
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            states[int(state["step"])] = (path.parent / "model", state)
        except (OSError, ValueError, KeyError, TypeError):  # damaged: the run says so when it is resumed
            continue
    if not states:
        return None, None
    last, state = max(states), states[max(states)][1]
    best_step = state.get("best_step")
    value = _finite(state.get("best_score"))
    known = {"score": value} if gold else {"gain": value}
    best = SavedModel(best_step, states[best_step][0], **known) if best_step in states else None
    return best, best if best_step == last else SavedModel(last, states[last][0])


def _unaided(run: Path) -> SavedModel | None:
    """Return the step that the first votes choose, with its accuracy where that was evaluated."""
    standings = run_standings(run)
    if not standings:
        return None
    chosen = best_standing(standings)
    accuracy = evaluated_accuracy(run, "heldout") or evaluated_accuracy(run, "train")
    path = run / "checkpoints" / f"step-{chosen.step:06d}" / "model"
    return SavedModel(chosen.step, path if path.is_dir() else None, accuracy.get(chosen.step), chosen.gain)


def _wall_clock(metrics: Sequence[Mapping[str, Any]]) -> tuple[float | None, str | None]:
    """Return the seconds from the begin of the first to the end of the last step, and when that was."""
    try:
        began, ended = (datetime.fromisoformat(metrics[i]["time"]) for i in (0, -1))
        seconds = (ended - began).total_seconds() + _seconds(metrics[0])
    except (IndexError, KeyError, TypeError, ValueError):
        return None, None
    return max(0.0, seconds), f"{ended:%Y-%m-%d %H:%M} {ended.tzname() or ''}".rstrip()


def _means(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of every metric over the records that have it; clocks and counters are left out."""
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.items():
            if name not in ("step", "total_steps") and (number := _finite(value)) is not None:
                values.setdefault(name, []).append(number)
    return {name: math.fsum(numbers) / len(numbers) for name, numbers in values.items()}


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _seconds(record: Mapping[str, Any]) -> float:
    return math.fsum(_finite(value) or 0.0 for name, value in record.items() if name.startswith("seconds_"))
