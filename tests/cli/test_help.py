from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dttrl import __version__
from dttrl_cli.app import app, main

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    "generate", "import", "score", "vote", "advise", "train", "analyze majority-ratio", "analyze accuracy",
    "analyze budget-scaling", "analyze stopping", "analyze distribution-shift", "analyze labels",
    "analyze confidence", "analyze compare", "analyze checkpoints", "doctor",
]  # fmt: skip


def registered() -> list[str]:
    """Every command as it is typed, from the application itself."""
    group = typer.main.get_command(app)
    names: list[str] = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        names += [f"{name} {sub}" for sub in inner] if inner else [name]
    return names


def page(command: str) -> str:
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "400", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return result.output


def examples(command: str) -> list[str]:
    lines = [line.strip() for line in page(command).splitlines()]
    return [line for line in lines if line.startswith(f"dttrl {command}")]


def test_this_file_knows_every_command() -> None:
    assert sorted(registered()) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_description_and_an_example(command: str) -> None:
    text = page(command)
    assert re.search(r"Examples?:", text)
    assert examples(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_use_only_options_that_exist(command: str) -> None:
    text = page(command)
    for example in examples(command):
        options = [word for word in shlex.split(example) if word.startswith("-")]
        unknown = [option for option in options if not re.search(rf"(?<!\S){option}(?!\S)", text)]
        assert unknown == [], example


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme(command: str) -> None:
    readme = ROOT / "README.md"
    if not readme.is_file():
        pytest.skip("there is no README.md in this tree")
    assert re.search(rf"\bdttrl {command}\b", readme.read_text("utf-8"))


@pytest.mark.parametrize("command", COMMANDS)
def test_common_options_mean_the_same_everywhere(command: str) -> None:
    text = page(command)
    for option in ("--quiet", "--json"):
        assert option in text
    if command not in ("doctor", "advise"):  # which write nothing
        assert "--overwrite" in text


def test_version_and_exit_codes_of_the_entry_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"dttrl {__version__}"
    assert main(["--help"]) == 0
    capsys.readouterr()
    assert main(["vote", "--no-such-option"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("dttrl: error: ")
    assert "dttrl vote --help" in captured.err
