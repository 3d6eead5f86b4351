"""``dttrl train --dry-run`` and ``--preset``: what would run, with nothing written."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl_cli.app import main
from dttrl_cli.plan import resolve

QUICKSTART = Path(__file__).parents[2] / "data" / "quickstart"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    run = tmp_path / "run"
    return [
        "train", str(QUICKSTART / "model"), str(QUICKSTART / "questions.jsonl"),
        "--engine", "openrlhf", "--run", str(run), "--template", "raw", "--steps", "3", "--dry-run",
    ]  # fmt: skip


def test_the_plan_can_be_run(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ["--logger.tensorboard_dir", "a b"]
    assert main([*arguments, "--", *extra]) == 0
    text = capsys.readouterr().out
    settings, command, rest = text.split("\n\n", 2)
    (tmp_path / "plan.yaml").write_text(settings)
    config = load_config(TrainConfig, tmp_path / "plan.yaml")
    assert (config.engine.engine, config.update.steps) == ("openrlhf", 3)
    words = shlex.split(command)
    assert words[1:4] == ["-m", "dttrl.training.openrlhf.main", str(tmp_path / "run")]
    assert words[-2:] == extra
    assert "Adam states" in rest
    assert "3 steps: 1,536 rollouts (768 trained on)" in rest
    assert not (tmp_path / "run").exists()


def test_the_plan_for_machines(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--json", "-q"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["config"]["steps"] == plan["estimate"]["steps"] == 3
    assert "--rollout.batch_size" in plan["command"]


@pytest.mark.parametrize(
    ("more", "named"),
    [(["--engine", "local"], "--dry-run"), (["--k", "21"], "--k 21"), (["--top-k", "3"], "--top-k")],
)
def test_what_would_be_refused_is_refused(
    arguments: list[str], more: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, *more]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err
    assert captured.err.count("\n") == 1


def test_a_file_wins_over_a_preset_and_options_over_both(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"questions": "q.jsonl", "votes": 32, "learning-rate": 1e-6}))
    config = resolve(path, "paper/qwen2.5-math-7b/amc", {"votes": 48, "episodes": 2})
    assert config.model.name == "Qwen/Qwen2.5-Math-7B"
    assert (config.signal.votes, config.update.learning_rate, config.update.episodes) == (48, 1e-6, 2)
    assert (config.sampling.temperature, config.signal.train_samples) == (1.0, 32)


def test_an_unknown_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "m", "q.jsonl", "--preset", "paper/none"]) == 2
    assert "there is no such preset" in capsys.readouterr().err
