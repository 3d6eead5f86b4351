"""Arguments after ``--``: kept for another program instead of being taken for positional ones."""

from __future__ import annotations

import typer
from typer.core import TyperCommand

AFTER_DASHES = "dttrl.after_dashes"
"""Key of ``Context.meta`` under which the arguments after ``--`` stand."""


class PassingCommand(TyperCommand):
    """A command that keeps what follows ``--`` in its context."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse what stands before ``--``."""
        if "--" in args:
            cut = args.index("--")
            ctx.meta[AFTER_DASHES] = args[cut + 1 :]
            args = args[:cut]
        return super().parse_args(ctx, args)
