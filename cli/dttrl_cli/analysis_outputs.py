"""Table and figure of an analysis: checked before any work, written after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dttrl_cli.console import Console

if TYPE_CHECKING:
    import pyarrow as pa


def check_outputs(output: Path | None, plot: Path | None, *, overwrite: bool, inputs: Sequence[Path]) -> None:
    """Raise for outputs that could not be written."""
    if output is not None:
        from dttrl.analysis import frames
        from dttrl.analysis.runs import run_files

        frames.check_output(output, overwrite=overwrite, inputs=run_files(inputs))
    if plot is not None:
        from dttrl.analysis import figures

        figures.check_figure(plot, overwrite=overwrite)


def write_outputs(
    console: Console,
    table: pa.Table,
    output: Path | None,
    plot: Path | None = None,
    draw: Callable[[Any], Any] | None = None,
    *,
    overwrite: bool,
) -> None:
    """Write the table and the figure that were asked for; ``draw`` makes it with the module of the figures.

    Only then is matplotlib loaded.
    """
    if output is not None:
        from dttrl.analysis import frames

        frames.write_frame(output, table, overwrite=overwrite)
        console.result(f"Table: {output}")
    if plot is not None and draw is not None:
        from dttrl.analysis import figures

        figures.save(draw(figures), plot, overwrite=overwrite)
        console.result(f"Figure: {plot}")
