"""Files that are written whole or not at all, only where they may be, and by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from dttrl.errors import InputError, OutputExistsError


def check_target(path: Path, *, overwrite: bool) -> None:
    """Raise for a path that no file can be written to, and for a file that is there unless ``overwrite``.

    Never replaced, because the file would take its name from other programs: a folder, pipe or device.
    """
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "pipe" if path.is_fifo() else "device or socket"
        raise InputError(f"{path}: is not a regular file (it is a {kind}); choose another name to write to")
    if path.exists() and not overwrite:
        raise OutputExistsError(
            f"{path}: exists already; pass --overwrite to replace it, or choose another name"
        )


def check_new_file(path: Path, *, overwrite: bool) -> None:
    """:func:`check_target`, and raise where the folder to write into is missing."""
    check_target(path, overwrite=overwrite)
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: the folder {path.absolute().parent} does not exist; create it first")


@contextlib.contextmanager
def replacing(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary name beside ``path``; what the block wrote there then takes its place at once.

    It is on the disk by then, also after a power cut. An exception in the block leaves ``path`` as it was and
    no temporary file; those that killed processes of this machine have left are removed.
    """
    _remove_abandoned(path)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        check_target(path, overwrite=overwrite)
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of the target that killed processes of this machine have left."""
    prefix = f"{target.name}.tmp-"
    with contextlib.suppress(OSError):  # a folder that cannot be listed may still be written to
        for name in os.listdir(target.parent):
            number = name.removeprefix(prefix)
            if name.startswith(prefix) and number.isdecimal() and not _runs(int(number)):
                (target.parent / name).unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        if sys.platform != "win32":  # where there is no harmless signal to ask with
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's process; not the number of a process
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut (some systems cannot open a folder: no harm)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(path: Path, what: object) -> Iterator[None]:
    """Hold the lock file ``path`` for the block; its folder (not the parents of that) is made where missing.

    InputError at once where another process holds it, and where the folder cannot be made or written to. The
    system lets the lock go with the process, however that ends. File systems without locks let everyone in.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        path.parent.mkdir(exist_ok=True)
        lock.acquire()
    except Timeout:
        raise InputError(f"{what}: another process is working on it; wait for it or stop it") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise InputError(f"{path.parent}: cannot be written to ({error.strerror})") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # first, so that a waiting process does not lock a removed file
            path.unlink()
        lock.release()
