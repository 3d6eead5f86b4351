"""``dttrl doctor``: which backends, engines and devices would work here, and why not."""

from __future__ import annotations

from dataclasses import asdict

import typer

from dttrl_cli import options
from dttrl_cli.console import Console

EXAMPLES = ("dttrl doctor", "dttrl doctor --json")


def doctor(quiet: options.Quiet = False, json_output: options.Json = False) -> None:
    """Say which sampling backends, training engines and devices would work here, and why not.

    Also which backend `--backend auto` would take, and which versions of the packages are known to work.
    Exit code 0 when dttrl can sample and train here, 1 when it cannot.
    """
    from dttrl.sampling.backends import auto_backend, backends, packages, threads

    console = Console(quiet=quiet, json_output=json_output)
    console.note("dttrl: looking at packages and devices ...")
    found, known, counted = backends(), packages(), threads()
    ready = any(item.name == "transformers" and item.usable for item in found)
    name, reason = auto_backend()
    rows = [
        [item.group, item.name, "yes" if item.usable else "no", item.reason]
        for item in found
        if item.group != "device"
    ]
    console.table("What works here", ["", "name", "works", "version, or why not"], rows)
    devices = [
        [
            item.name,
            "yes" if item.usable else "no",
            _size(item.total_bytes),
            _size(item.free_bytes),
            item.reason,
        ]
        for item in found
        if item.group == "device"
    ]
    console.table("Devices", ["", "works", "memory", "free", "what, or why not"], devices)
    versions = [[package.name, package.version or "-", package.state] for package in known]
    console.table("Versions", ["package", "here", "known to work"], versions)
    shown = ", ".join(f"{key} {'not set' if value is None else value}" for key, value in counted.items())
    console.result(f"Threads: {shown}.")
    console.result(f"--backend auto takes {name}: {reason}.")
    console.result("Ready to sample and train." if ready else "Not ready: see transformers.")
    console.data(
        {
            "ready": ready,
            "auto": {"backend": name, "reason": reason},
            "found": [asdict(item) for item in found],
            "packages": [{**asdict(package), "state": package.state} for package in known],
            "threads": counted,
        }
    )
    if not ready:
        raise typer.Exit(1)


def _size(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**30:.1f} GiB"
