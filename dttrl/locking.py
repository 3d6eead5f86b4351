"""One process at a time: an advisory lock on a file, which the system drops when its holder ends or dies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dttrl.errors import WorkError


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock ``path`` for the block; raises :class:`WorkError` at once when another process has it.

    ``what`` names the thing that is worked on. Systems without ``fcntl`` (Windows) are not protected.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise WorkError(f"{what}: another process is working on it; wait for it or stop it") from None
        yield
