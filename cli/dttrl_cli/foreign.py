"""Commands that take rollouts also take the files of other tools: recognised, and imported on the way."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dttrl_cli.console import Console


def accepts_foreign(parameter: str, *, scored: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a command whose ``parameter`` holds rollout files.

    Files of another tool's format are replaced by an imported copy (and, with ``scored``, a scored one) in a
    temporary folder, which goes when the command ends. What was recognised is said on stderr.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(**arguments: Any) -> None:
            files: list[Path] | None = arguments[parameter]
            if not files:
                command(**arguments)
                return
            from dttrl.interop.acceptance import accept

            console = Console(quiet=arguments["quiet"], json_output=arguments["json_output"])
            with tempfile.TemporaryDirectory(prefix="dttrl-import-") as folder:
                ours, notes = accept(files, Path(folder), scored=scored, kind=arguments.get("kind"))
                for text in notes:
                    console.note(f"dttrl: {text}")
                command(**{**arguments, parameter: ours})

        return wrapped

    return decorate
