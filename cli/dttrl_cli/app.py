"""The ``dttrl`` command: registers one module a command and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from dttrl import __version__
from dttrl_cli import advise, analyze, console, doctor, generate, import_, score, train, vote
from dttrl_cli.options import examples
from dttrl_cli.passing import PassingCommand

app = typer.Typer(
    name="dttrl",
    help="Test-time reinforcement learning without labels: generate, score, vote, train, analyze.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate", epilog=examples(generate.EXAMPLES))(generate.generate)
app.command("import", epilog=examples(import_.EXAMPLES))(import_.import_)
app.command("score", epilog=examples(score.EXAMPLES))(score.score)
app.command("vote", epilog=examples(vote.EXAMPLES))(vote.vote)
app.command("advise", epilog=examples(advise.EXAMPLES))(advise.advise)
app.command("train", cls=PassingCommand, epilog=examples(train.EXAMPLES))(train.train)
app.add_typer(analyze.app, name="analyze")
app.command("doctor", epilog=examples(doctor.EXAMPLES))(doctor.doctor)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"dttrl {__version__}")
        raise typer.Exit


@app.callback(epilog=examples(train.EXAMPLES[:1]))
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Test-time reinforcement learning without labels: generate, score, vote, train, analyze."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    return console.run(app, args)
