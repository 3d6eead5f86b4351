"""Options that several commands share, with one meaning everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

COMMON = "Common"


def examples(commands: Sequence[str]) -> str:
    """Return the end of a help page: the command as it may be typed, one line each."""
    return "\n\n".join(["Example:" if len(commands) == 1 else "Examples:", *commands])


Seed = Annotated[
    int, typer.Option("--seed", min=0, rich_help_panel=COMMON, help="Everything random follows from this.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", rich_help_panel=COMMON, help="Replace the output if it exists.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=COMMON, help="No progress and no notes on stderr.")
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=COMMON, help="Print the result as JSON instead of tables.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", rich_help_panel=COMMON,
        help="YAML file of settings; options given on the command line win over it.",
    ),
]  # fmt: skip
StoredKind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Kind of answer, where the file does not say: auto, math, choice, text, integer or a custom "
        "grader's name. (default: as it was scored, else auto)",
        show_default=False,
    ),
]
Frame = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Also write the table, as CSV or Parquet by its ending."
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Also draw the figure, as SVG, PNG or PDF by its ending."),
]
