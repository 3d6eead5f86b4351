"""The five commands, one after the other, on the quickstart model; each reads what the last one wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dttrl.ranges import SURE
from dttrl_cli.app import app

DATA = Path(__file__).resolve().parents[2] / "data" / "quickstart"


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output + str(result.exception)
    return result


def data(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("path")


@pytest.fixture(scope="module")
def scored(folder: Path) -> Path:
    rollouts, scored = folder / "rollouts.parquet", folder / "scored.parquet"
    common = ("--template", "raw", "--max-new-tokens", 44, "--batch-size", 256, "--threads", 1)
    questions = DATA / "questions.jsonl"
    generated = data(
        "generate", DATA / "model", questions, "-o", rollouts, "--samples", 32, "--limit", 12, *common
    )
    assert generated["rollouts"] == 12 * 32
    counts = data("score", rollouts, "-o", scored, "--region", "all")
    assert counts["rollouts"] == 12 * 32
    # The committed model is right about 60 % of the time (data/quickstart/README.md).
    assert 0.45 < counts["accuracy"] < 0.75
    return scored


def test_votes_of_the_scored_rollouts_beat_a_single_sample(folder: Path, scored: Path) -> None:
    votes = data("vote", scored, "--method", "all", "-o", folder / "votes.parquet")
    by_method = {row["method"]: row for row in votes["methods"]}
    assert {"sc", "wsc", "distrivoting"} <= set(by_method)
    (accuracy,) = data("analyze", "accuracy", scored)
    assert by_method["sc"]["accuracy"] > accuracy["avg"] + 0.1


def test_sure_questions_stop_and_what_that_saves_is_told_beforehand(folder: Path, scored: Path) -> None:
    all_rollouts = 12 * 32
    told = data("analyze", "stopping", scored, "--samples", "8..32", "--until", SURE)
    asked = ("--samples", "8..32", "--region", "all", "--limit", 12, "--template", "raw")
    command = ("generate", DATA / "model", DATA / "questions.jsonl", "-o", folder / "sure.parquet", *asked)
    drawn = data(*command, "--max-new-tokens", 44, "--batch-size", 256, "--threads", 1)
    assert drawn["rollouts"] < all_rollouts
    assert drawn["unspent"]["rollouts"] == all_rollouts - drawn["rollouts"]
    # The rollouts are those of the full run, so the simulation stops the questions that sampling stops.
    assert told[0]["rollouts"] == pytest.approx(drawn["rollouts"] / all_rollouts)
    assert told[0]["stopped"] == pytest.approx(drawn["unspent"]["stopped"] / 12)
    again = folder / "sure-scored.parquet"
    assert data("score", folder / "sure.parquet", "-o", again, "--region", "all")["questions"] == 12
    assert data("vote", again, "--method", "sc")["questions"] == 12


def test_training_is_label_free_and_analysed(folder: Path) -> None:
    path = folder / "run"
    config = (DATA / "train.yaml").read_text()
    for name in ("model", "questions.jsonl", "heldout.jsonl"):
        config = config.replace(f"data/quickstart/{name}", str(DATA / name))
    (folder / "train.yaml").write_text(config)
    trained = data(
        "train", "--config", folder / "train.yaml", "--run", path, "--steps", 2, "--votes", 16,
        "--train-samples", 8, "--limit", 8, "--eval-samples", 2, "--eval-every", 0,
    )  # fmt: skip
    assert trained["method"] == "distri-gmm"
    assert trained["steps"] == 2
    assert (path / "report.html").stat().st_size > 10_000
    ratios = data("analyze", "majority-ratio", path)
    assert ratios
    again = run("vote", path, "--method", "sc")
    assert "sc" in again.stdout
