"""What all analyses have in common: table, figure and JSON, checked before any work and written after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer

from dttrl_cli import options
from dttrl_cli.console import Console, interval


@dataclass(frozen=True)
class Analysis:
    """What an analysis came to."""

    table: Any
    """A pandas frame."""
    draw: Callable[[Any], Any] | None = None
    """Makes the figure with the module of the figures; only then is matplotlib loaded."""
    json: Callable[[list[dict[str, Any]]], object] = list
    """Makes the JSON document from the rows of the table."""


def records(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a frame, NaN where a number is missing."""
    rows: list[dict[str, Any]] = table.to_dict("records")
    return rows


def estimate(row: dict[str, Any], name: str) -> str:
    """Format a number of a row with its interval."""
    return interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


def analysis(
    *examples: str, plot: bool = True
) -> Callable[[Callable[..., Analysis]], Callable[[typer.Typer], None]]:
    """Make a command of a function of a console and of paths, with the options that all analyses share.

    The paths are the function's second parameter. It prints its tables and returns an :class:`Analysis`.
    What comes of it adds the command to an app, under the function's name.
    """

    def made_command(function: Callable[..., Analysis]) -> Callable[[typer.Typer], None]:
        def command(
            output: options.Frame = None,
            plot: options.Plot = None,
            overwrite: options.Overwrite = False,
            quiet: options.Quiet = False,
            json_output: options.Json = False,
            **given: Any,
        ) -> None:
            from dttrl.analysis import frames
            from dttrl.analysis.runs import run_files

            console = Console(quiet=quiet, json_output=json_output)
            if output is not None:
                frames.check_output(output, overwrite=overwrite, inputs=run_files(given[own[0].name]))
            if plot is not None:
                from dttrl.analysis import figures

                figures.check_figure(plot, overwrite=overwrite)
            made = function(console, **given)
            if output is not None:
                frames.write_frame(output, made.table, overwrite=overwrite)
                console.result(f"Table: {output}")
            if plot is not None and made.draw is not None:
                from dttrl.analysis import figures

                figures.save(made.draw(figures), plot, overwrite=overwrite)
                console.result(f"Figure: {plot}")
            console.data(made.json(frames.arrow(made.table).to_pylist()))

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        parameters = own + [option for option in shared if plot or option.name != "plot"]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__doc__ = function.__doc__

        def add(app: typer.Typer) -> None:
            app.command(function.__name__.replace("_", "-"), epilog=options.examples(examples))(command)

        return add

    return made_command
