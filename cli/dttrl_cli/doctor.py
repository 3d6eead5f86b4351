"""``dttrl doctor``: which backends and devices would work here, and why not."""

from __future__ import annotations

import typer

from dttrl_cli import options
from dttrl_cli.console import Console

EXAMPLES = ("dttrl doctor",)


def doctor(quiet: options.Quiet = False, json_output: options.Json = False) -> None:
    """Say which sampling backends, training engines and devices would work here, and why not.

    Exit code 0 when dttrl can sample and train here, 1 when it cannot.
    """
    from dttrl.sampling.backends import backends

    console = Console(quiet=quiet, json_output=json_output)
    console.note("dttrl: looking at packages and devices ...")
    found = backends(probe=True)
    ready = any(item.name == "transformers" and item.usable for item in found)
    rows = [[item.name, "yes" if item.usable else "no", item.reason] for item in found]
    console.table("What works here", ["", "works", "version, or why not"], rows)
    console.result("Ready to sample and train." if ready else "Not ready: see transformers.")
    console.data(
        {
            "ready": ready,
            "found": [{"name": item.name, "usable": item.usable, "reason": item.reason} for item in found],
        }
    )
    if not ready:
        raise typer.Exit(1)
