from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dttrl.analysis.run_summary import SavedModel, summarize_run
from tests.unit.analysis.test_checkpoint_choice import COLLAPSE
from tests.unit.analysis.test_checkpoint_choice import make_run as make_voted


def make_run(folder: Path, records: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"method": "ttrl"}))
    lines = [json.dumps({"step": i} | record) for i, record in enumerate(records, start=1)]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("steps", "window", "first", "last", "label"),
    [
        (12, 5, 3.0, 10.0, "first/last 5 steps"),
        (7, 3, 2.0, 6.0, "first/last 3 steps"),
        (2, 1, 1.0, 2.0, "first/last step"),
        (1, 1, 1.0, 1.0, "the only step"),
    ],
)
def test_metrics_are_means_over_windows_that_do_not_overlap(
    tmp_path: Path, steps: int, window: int, first: float, last: float, label: str
) -> None:
    summary = summarize_run(make_run(tmp_path / "r", [{"x": i + 1.0} for i in range(steps)]))
    assert (summary.steps, summary.window, summary.window_label) == (steps, window, label)
    assert (summary.first, summary.last) == ({"x": first}, {"x": last})
    assert summary.overall == {"x": (steps + 1) / 2}


def test_missing_values_do_not_enter_a_mean(tmp_path: Path) -> None:
    records = [{"x": None}, {"x": 2.0, "word": "w", "flag": True}, {}, {"x": 4.0}]
    summary = summarize_run(make_run(tmp_path / "r", records))
    assert (summary.first, summary.last, summary.overall) == ({"x": 2.0}, {"x": 4.0}, {"x": 3.0})
    empty = summarize_run(make_run(tmp_path / "empty", []))
    assert (empty.steps, empty.first, empty.wall_seconds, empty.ended) == (0, {}, None, None)


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({"method": "ttrl"}, "ttrl"),
        ({"method": "ttrl", "label": "mob"}, "ttrl, labels by mob"),
        ({"method": "distri-gmm", "min_positives": 3}, "distri-gmm, labels by progressive:min=3"),
    ],
)
def test_a_run_with_another_vote_than_its_methods_says_so(
    tmp_path: Path, settings: dict[str, Any], title: str
) -> None:
    run = make_run(tmp_path / "r", [{"x": 1.0}])
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    assert summarize_run(run).method == title


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"no_answer_rate": 1.0, "updates": 0}, {"no_answer_rate": 0.9, "updates": 3}], "no answers found"),
        ([{"no_answer_rate": 0.0, "updates": 0}] * 2, "nothing was learned"),
        ([{"no_answer_rate": 0.9, "updates": 0}, {"no_answer_rate": 0.9, "updates": 1}], None),
        ([], None),
    ],
)
def test_a_run_that_cannot_learn_is_noted(
    tmp_path: Path, records: list[dict[str, Any]], expected: str | None
) -> None:
    notes = summarize_run(make_run(tmp_path / "r", records)).notes
    assert len(notes) == (expected is not None)
    for note in notes:
        assert note.startswith(str(expected))
        assert "--max-new-tokens, --template, --kind" in note


def test_the_best_and_the_last_checkpoint_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [{}])
    assert (summarize_run(run).best, summarize_run(run).final) == (None, None)
    for step, state in (
        (10, {"step": 10, "best_step": 10, "best_score": 0.75}),
        (20, {"step": 20, "best_step": 10, "best_score": 0.75}),
    ):
        folder = run / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps(state))
    damaged = run / "checkpoints" / "step-000030"
    damaged.mkdir()
    (damaged / "state.json").write_text("{")
    summary = summarize_run(run)
    assert summary.best is not None
    assert summary.final is not None
    # No evaluation has a gold answer: the score is what the votes gained.
    assert (summary.best.step, summary.best.score, summary.best.gain) == (10, None, 0.75)
    assert summary.best.path == run / "checkpoints" / "step-000010" / "model"
    assert (summary.final.step, summary.final.score) == (20, None)
    state = {"step": 20, "best_step": None, "best_score": None}
    (run / "checkpoints" / "step-000020" / "state.json").write_text(json.dumps(state))
    assert summarize_run(run).best is None


def keep_checkpoints(run: Path, best: int, score: float, *steps: int) -> None:
    for step in steps:
        (run / "checkpoints" / f"step-{step:06d}" / "model").mkdir(parents=True)
        state = {"step": step, "best_step": best, "best_score": score}
        (run / "checkpoints" / f"step-{step:06d}" / "state.json").write_text(json.dumps(state))


def test_the_summary_of_a_run_with_gold_shows_what_would_be_kept_without(tmp_path: Path) -> None:
    run = make_voted(tmp_path / "r", COLLAPSE, {"train": {0: 2, 2: 2, 4: 3}, "heldout": {0: 2, 2: 1, 4: 2}})
    keep_checkpoints(run, 4, 0.5, 4)
    summary = summarize_run(run)
    assert summary.best == SavedModel(4, run / "checkpoints" / "step-000004" / "model", score=0.5)
    assert summary.best.worth == " (avg@n 0.500)"
    assert summary.unaided == SavedModel(2, None, score=0.25, gain=0.25)


def test_the_summary_of_a_run_without_gold_shows_the_gain_of_its_best(tmp_path: Path) -> None:
    run = make_voted(tmp_path / "r", COLLAPSE, {})
    keep_checkpoints(run, 2, 0.25, 2, 4)
    summary = summarize_run(run)
    assert summary.best == SavedModel(2, run / "checkpoints" / "step-000002" / "model", gain=0.25)
    assert summary.best.worth == " (gain on the first votes +0.250)"
    assert summary.final == SavedModel(4, run / "checkpoints" / "step-000004" / "model")
    assert summary.unaided == summary.best
