"""A lock file that one process at a time holds; the system lets it go with the process, however that ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from dttrl.errors import InputError

_TRIES = 100


class Lock:
    """An advisory lock on ``path``, which exists while it is held, as does its folder.

    Systems without such locks (Windows, some network file systems) let everyone in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> bool:
        """Make the folder (not its parents) and the file; False at once where another process holds the lock.

        InputError where the folder cannot be made or written to.
        """
        for _ in range(_TRIES):
            try:
                self._path.parent.mkdir(exist_ok=True)
                handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:  # another process has just removed the folder
                if not self._path.parent.parent.is_dir():
                    break
                continue
            except FileExistsError as error:
                raise InputError(f"{self._path.parent}: is not a folder; move it away") from error
            except OSError as error:
                raise InputError(f"{self._path.parent}: cannot be written to ({error.strerror})") from error
            if not _locked(handle):
                os.close(handle)
                return False
            if _same_file(handle, self._path):
                self._handle = handle
                return True
            os.close(handle)  # its holder removed it between our opening and locking it
        raise InputError(f"{self._path.parent}: cannot be made; does {self._path.parent.parent} exist?")

    def release(self) -> None:
        """Remove the file and let others in; does nothing where the lock is not held."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._handle)
            self._handle = None


def _locked(handle: int) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True
    return True


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock ``path`` for the block; raises :class:`InputError` where another process has it."""
    lock = Lock(path)
    if not lock.take():
        raise InputError(f"{what}: another process is working on it; wait for it or stop it")
    try:
        yield
    finally:
        lock.release()
