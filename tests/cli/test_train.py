"""What ``dttrl train`` shows at the end of a run, and what it says when it is stopped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dttrl.settings.commands import TrainConfig
from dttrl_cli.app import main
from tests.cli.test_analyze import make_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run that ``--resume`` leaves as it is."""
    folder = make_run(tmp_path / "first", [0.25, 0.5, 0.5, 0.75])
    state = folder / "checkpoints" / "step-000004" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"step": 4, "best_step": 4, "best_score": 0.5}))
    monkeypatch.setattr("dttrl.training.loop.resume", lambda run, **_: run)
    return folder


def test_the_table_compares_windows_of_steps(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(run)]) == 0
    text = capsys.readouterr().out
    row = r"^training, first/last 2 steps: majority ratio +0\.375 +0\.625 +\+0\.250$"
    assert re.search(row, text, re.MULTILINE)
    assert "Label accuracy over all 4 steps: 0.500" in text
    assert f"Best checkpoint: step 4 (avg@n 0.500), {run / 'checkpoints' / 'step-000004' / 'model'}" in text
    assert "Last checkpoint: step 4" in text
    # No labels are kept: the evaluations' votes, which never change, choose the last of their steps.
    assert re.search(r"^Chosen without gold answers: step 2 \(avg@n 0\.750\)$", text, re.MULTILINE)


def test_without_gold_the_best_checkpoint_is_shown_with_its_gain(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "evaluations.parquet").unlink()
    assert main(["train", "--resume", str(run)]) == 0
    text = capsys.readouterr().out
    assert "Best checkpoint: step 4 (gain on the first votes +0.500), " in text
    assert "Chosen without gold" not in text


def test_a_label_that_is_not_the_methods_own_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(settings | {"label": "mob"}))
    assert main(["train", "--resume", str(run)]) == 0
    assert "ttrl, labels by mob, 4 steps" in capsys.readouterr().out
    page = (run / "report.html").read_text()
    assert "Method <b>ttrl, labels by mob</b>" in page
    assert main(["train", "--resume", str(run), "--json", "-q"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["method"], result["label"]) == ("ttrl", "mob")


def test_one_step_is_not_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(lines[0] + "\n")
    assert main(["train", "--resume", str(run)]) == 0
    text = capsys.readouterr().out
    assert "ttrl, 1 step " in text
    assert re.search(r"^training, the only step: majority ratio +0\.250 +- +-$", text, re.MULTILINE)
    assert "over all" not in text


def test_the_result_for_machines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(run), "--json", "-q"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result = json.loads(captured.out)
    assert set(result) == {
        "run", "report", "method", "label", "steps", "seconds", "wall_seconds", "splits", "window",
        "first_steps", "last_steps", "all_steps", "checkpoints", "notes",
    }  # fmt: skip
    before = result["splits"]["train"]["before"]
    assert (before["step"], before["questions"], before["n"], before["avg"]) == (0, 3, 4, 0.25)
    assert (result["window"], result["last_steps"]["majority_ratio"]) == (2, 0.625)
    assert result["checkpoints"]["best"]["step"] == 4
    unaided = result["checkpoints"]["without_gold"]
    assert (unaided["step"], unaided["score"], unaided["gain"], unaided["path"]) == (2, 0.75, 0.0, None)


def test_a_run_without_answers_gets_one_note(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [json.dumps({"step": i, "no_answer_rate": 0.95, "updates": 0}) for i in (1, 2)]
    (run / "metrics.jsonl").write_text("\n".join(records) + "\n")
    assert main(["train", "--resume", str(run)]) == 0
    error = capsys.readouterr().err
    assert error == (
        "dttrl: no answers found in 95 % of the rollouts: look at --max-new-tokens, --template, --kind\n"
    )


@pytest.mark.parametrize("started", [True, False])
def test_a_stopped_run_goes_on_only_where_it_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(config: TrainConfig, *, observer: Any, overwrite: bool) -> None:
        if started:
            observer.start(config, config.keeping.run)
        raise KeyboardInterrupt

    monkeypatch.setattr("dttrl.training.loop.train", stop)
    folder = tmp_path / "my runs"
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump({"model": "m", "questions": "q.jsonl"}))
    assert main(["train", "-c", str(config), "--run", str(folder), "-q"]) == 130
    resume = f"dttrl train --resume '{folder}'"
    advice = f"there is no checkpoint yet; start this run again with: {resume}"
    if not started:
        advice = "run the same command again"
    assert capsys.readouterr().err == f"dttrl: interrupted; {advice}\n"
