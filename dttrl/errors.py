"""Every failure that dttrl raises on purpose.

One base class, one class per kind of failure. Each is also the built-in exception it refines, so that
callers may catch either, and each takes a single message, so that it survives pickling between processes.
The message is one line: it names the file, column, row or option, and says what to do.
"""

from __future__ import annotations


class DttrlError(Exception):
    """Base of all errors of this package; ``exit_code`` is what the command line returns for it."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)


class WorkError(DttrlError, RuntimeError):
    """The input was right, but the work could not be done (a worker died, a disk is full)."""


class InputError(DttrlError, ValueError):
    """What the user gave is wrong: a file, a column, a value, an option."""

    exit_code = 2


class OutputExistsError(InputError, FileExistsError):
    """The output is there already and ``--overwrite`` was not given."""


class MissingDependencyError(InputError, ImportError):
    """A feature needs a package that is not installed; the message holds the command that installs it."""
