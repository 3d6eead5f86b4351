"""What all analyses have in common: table, figure and JSON, checked before any work and written after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from dttrl_cli import options
from dttrl_cli.console import Console, interval, number

Cell = Callable[[Mapping[str, Any]], str]
Columns = Mapping[str, str | Cell]


@dataclass(frozen=True)
class Analysis:
    """What an analysis came to."""

    table: Any
    """A pandas frame."""
    draw: Callable[[Any], Any] | None = None
    """Makes the figure with the module of the figures; only then is matplotlib loaded."""
    json: Callable[[list[dict[str, Any]]], object] = list
    """Makes the JSON document from the rows of the table."""


def show(console: Console, title: str, table: Any, columns: Columns) -> None:
    """Print a frame: for each heading a column of it, or what makes a cell of a row.

    Numbers get three digits, and their interval where the frame has one.
    """

    def cell(row: Mapping[str, Any], column: str | Cell) -> str:
        if not isinstance(column, str):
            return column(row)
        if f"{column}_low" in row:
            return interval(*(row[column + end] for end in ("", "_low", "_high")))
        return number(row[column]) if isinstance(row[column], float) else str(row[column])

    rows = [[cell(row, column) for column in columns.values()] for row in table.to_dict("records")]
    console.table(title, list(columns), rows)


def steps(row: Mapping[str, Any]) -> str:
    """Return the block of steps of a row."""
    from dttrl.analysis.blocks import Span

    return str(Span(row["first_step"], row["last_step"]))


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
