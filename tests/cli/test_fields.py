from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from dttrl.method.methods import OLDER
from dttrl.section import Section, flag
from dttrl.settings.commands import CommandSettings, GenerateConfig, ScoreConfig, TrainConfig, settings_of
from dttrl.settings.files import dump_config, load_config
from dttrl_cli.fields import settings


class ExampleSection(Section):
    """Every kind of field that a section may have."""

    panel: ClassVar[str] = "Optimisation"

    learning_rate: float = Field(5e-7, description="Step size [bold] in [0, 1].")
    steps: int | None = Field(None, description="Steps.")
    shuffle: bool = Field(True, description="Shuffle.")
    mode: Literal["fast", "slow"] = Field("fast", description="Mode.")
    stop: tuple[str, ...] = Field((), description="Stop strings.")
    path: Path | None = Field(None, description="Path.")
    name: str = Field(description="Name.")


class Example(CommandSettings):
    example: ExampleSection


def run(*args: str) -> tuple[Any, dict[str, Any]]:
    """The result of a command made from ``Example``, and what it was given."""
    seen: dict[str, Any] = {}
    app = typer.Typer(rich_markup_mode="rich")

    @app.command()
    @settings(Example, leave_out=("name",))
    def command(
        given: dict[str, Any],
        name: Annotated[str, typer.Argument()] = "nobody",
        loud: Annotated[bool, typer.Option("--loud")] = False,
    ) -> None:
        """Do nothing."""
        seen.update(given, name=name, loud=loud)

    result = CliRunner().invoke(app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1"})
    return result, seen


def test_only_what_the_user_gave_is_handed_on() -> None:
    result, seen = run()
    assert result.exit_code == 0, result.output
    assert seen == {"name": "nobody", "loud": False}


def test_every_kind_of_option_reaches_the_command_with_its_type() -> None:
    result, seen = run(
        "me", "--loud", "--learning-rate", "1e-5", "--no-shuffle", "--mode", "slow", "--stop", "a",
        "--stop", "b",
        "--path", "x/y",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert seen == {
        "name": "me", "loud": True, "learning_rate": 1e-5, "shuffle": False, "mode": "slow",
        "stop": ("a", "b"), "path": Path("x/y"),
    }  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [("12", 12), ("none", None), ("NONE", None)])
def test_none_can_be_given_where_a_field_allows_it(text: str, expected: int | None) -> None:
    result, seen = run("--steps", text)
    assert result.exit_code == 0, result.output
    model = Example.model_validate({"name": "n", "steps": 7} | {"steps": seen["steps"]})
    assert model.example.steps == expected


@pytest.mark.parametrize("args", [("--learning-rate", "much"), ("--mode", "other"), ("--absent", "1")])
def test_a_bad_value_or_option_is_a_usage_error(args: tuple[str, ...]) -> None:
    result, _ = run(*args)
    assert result.exit_code == 2


def test_help_shows_description_real_default_and_panel() -> None:
    result, _ = run("--help")
    assert "Step size [bold] in [0, 1]. (default: 5e-07)" in result.output
    assert "Optimisation" in result.output
    assert "Shuffle. (default: on)" in result.output
    assert "--no-shuffle" in result.output
    assert "Steps. (default: none)" in result.output
    assert "--name" not in result.output


@pytest.mark.parametrize("model", [GenerateConfig, ScoreConfig, TrainConfig])
def test_every_setting_has_an_option_with_help(model: type[CommandSettings]) -> None:
    app = typer.Typer(rich_markup_mode="rich")

    @app.command()
    @settings(model)
    def command(given: dict[str, Any]) -> None:
        """Do nothing."""

    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    for name, places in settings_of(model).items():
        line = next(line for line in result.output.splitlines() if re.search(rf"{flag(name)}\s", line))
        description = places[-1].info.description
        assert description
        assert description.split(".")[0][:40] in line
    assert not any(flag(name) in result.output for name in OLDER)


def test_the_flags_of_earlier_releases_still_work() -> None:
    app = typer.Typer()

    @app.command()
    @settings(TrainConfig, leave_out=("model", "questions"))
    def command(given: dict[str, Any]) -> None:
        """Do nothing."""
        results.append(load_config(TrainConfig, None, {"model": "m", "questions": "q"} | given))

    results: list[TrainConfig] = []
    older = ["--f-vote", "weighted", "--monotone", "--min-positives", "3", "--history-window", "none"]
    result = CliRunner().invoke(app, older)
    assert result.exit_code == 0, result.output
    assert results[0].signal.label == "progressive:f=weighted,monotone=yes,min=3"


def test_a_flag_wins_over_yaml_and_yaml_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    base = {"model": "m", "questions": Path("q.jsonl")}
    file.write_text(dump_config(load_config(TrainConfig, None, base | {"tau": 0.2, "votes": 48})))
    app = typer.Typer()

    @app.command()
    @settings(TrainConfig)
    def command(given: dict[str, Any]) -> None:
        """Do nothing."""
        results.append(load_config(TrainConfig, file, given))

    results: list[TrainConfig] = []
    assert CliRunner().invoke(app, ["--votes", "40"]).exit_code == 0
    assert (results[0].signal.votes, results[0].signal.tau, results[0].update.clip_epsilon) == (40, 0.2, 0.2)
