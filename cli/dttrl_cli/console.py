"""What the commands show: results on stdout, progress and notes on stderr, failures as one line.

The only module that uses rich. On a terminal tables and progress bars are drawn; in a pipe or a log file they
are plain lines. ``run`` turns every failure into one line and an exit code: 0 done, 1 the work failed, 2 the
input is wrong, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM, as batch systems and containers send it).
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

import typer

from dttrl.errors import DttrlError

DEBUG_VARIABLE = "DTTRL_DEBUG"
_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
_PLAIN_SECONDS = 10.0  # between two plain progress lines
_USAGE_ERRORS: tuple[type[BaseException], ...] = tuple(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


class Interrupted(Exception):
    """Ctrl-C or SIGTERM in work that can go on; the message says how."""


@contextmanager
def resumable(hint: str | Callable[[], str]) -> Iterator[None]:
    """Turn a keyboard interrupt inside the block into one line that ends with ``hint``.

    A function is asked for the hint when the interrupt comes.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(hint() if callable(hint) else hint) from None


@contextmanager
def _terminable() -> Iterator[Callable[[], bool]]:
    """Make SIGTERM inside the block a KeyboardInterrupt; yields whether it came.

    Only the first counts: batch systems send it several times, and cleaning up should not be cut short.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    # Python allows handlers in the main thread only, and who started us may want the signal ignored.
    ours = threading.current_thread() is threading.main_thread() and before == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: came
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def run(app: typer.Typer, args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # answers may hold characters that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings(), _terminable() as terminated:
        if not _debugging():  # warnings are for who reads the code; what users must know is a note
            warnings.simplefilter("ignore")
        return _exit_code(app, args, terminated)


def _exit_code(app: typer.Typer, args: Sequence[str] | None, terminated: Callable[[], bool]) -> int:
    try:
        code = _invoke(app, args)
        sys.stdout.flush()
        return code
    except (Interrupted, KeyboardInterrupt) as error:
        word, code = ("terminated", _TERMINATED) if terminated() else ("interrupted", _INTERRUPTED)
        advice = str(error) if isinstance(error, Interrupted) else "run the same command again"
        return _fail(f"{word}; {advice}", code)
    except BrokenPipeError:
        # The reader of a pipe is gone (| head): leave without a word, also when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _USAGE_ERRORS as error:
        # Without arguments the help has been shown, and there is nothing to add.
        return _fail(message, 2) if (message := _usage(error)) else 2
    except DttrlError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        wrong_input = isinstance(
            error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
        )
        return _fail(str(error), 2 if wrong_input else 1)
    except Exception as error:
        advice = f"set {DEBUG_VARIABLE}=1 to see where"
        return _fail(f"unexpected {type(error).__name__}: {error} ({advice})", 1)


def _invoke(app: typer.Typer, args: Sequence[str] | None) -> int:
    try:
        result = app(args=None if args is None else list(args), prog_name="dttrl", standalone_mode=False)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if result == _INTERRUPTED:
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


def _usage(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    formatted = getattr(error, "format_message", None)
    message = str(formatted()) if callable(formatted) else str(error)
    path = getattr(context, "command_path", "dttrl")
    return f"{message} (see {path} --help)" if message.strip() else ""


def _debugging() -> bool:
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


def _fail(message: str, code: int) -> int:
    stopped = code in (_INTERRUPTED, _TERMINATED)
    if _debugging() and not stopped:
        traceback.print_exc()
    line = " ".join(message.split())
    print(f"dttrl: {'' if stopped else 'error: '}{line}", file=sys.stderr)
    return code


class Console:
    """One command's output; ``quiet`` drops progress and notes, ``json_output`` keeps stdout to one JSON."""

    def __init__(self, *, quiet: bool = False, json_output: bool = False) -> None:
        self.quiet = quiet
        self.json_output = json_output

    def note(self, text: str) -> None:
        """Say something on the way (stderr)."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def result(self, text: str) -> None:
        """Print a line of the result (stdout); left out of JSON output."""
        if not self.json_output:
            print(text)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table of the result (stdout); columns of numbers align right."""
        if self.json_output:
            return
        if sys.stdout.isatty():
            _rich_table(title, columns, rows)
            return
        print(title)
        right = _numeric_columns(rows, len(columns))
        widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
        for row in (columns, *rows):
            cells = [
                cell.rjust(width) if right[i] else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())

    def data(self, value: object) -> None:
        """Print the result as one JSON document when ``--json`` was given; NaN becomes null."""
        if self.json_output:
            print(json.dumps(_plain(value), ensure_ascii=False, indent=2, allow_nan=False))

    def progress(self, label: str, unit: str, total: int | None = None) -> Progress:
        """Return a progress display to use as a context manager."""
        return Progress(label, unit, total, quiet=self.quiet)


class Progress:
    """Work done, rate and time left on stderr: a bar on a terminal, else a line every few seconds."""

    def __init__(self, label: str, unit: str, total: int | None, *, quiet: bool) -> None:
        self._label, self._unit, self._total = label, unit, total
        self._quiet = quiet
        self._done = 0
        self._skipped = 0
        self._began = self._spoke = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        self._began = self._spoke = time.monotonic()
        if not self._quiet and sys.stderr.isatty():
            self._bar = _rich_progress(self._unit)
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._quiet and kind is None and self._done:
            self._say()

    def restart(self, done: int, total: int | None) -> None:
        """Start the clock now, with ``done`` units finished by an earlier run; they do not enter the rate."""
        self._began = self._spoke = time.monotonic()
        self._skipped = done
        if self._bar is not None:
            self._bar.reset(self._task, total=total, completed=done)
        self.update(done, total)

    def update(
        self, done: int, total: int | None = None, *, label: str | None = None, note: str = ""
    ) -> None:
        """Show that ``done`` units (of ``total``) are finished; ``note`` is shown behind."""
        self._done = done
        self._total = self._total if total is None else total
        self._label = self._label if label is None else label
        if self._bar is not None:
            self._bar.update(
                self._task, completed=done, total=self._total, description=self._label,
                note=" ".join((self.speed(), note)).strip(),
            )  # fmt: skip
        elif not self._quiet and time.monotonic() - self._spoke >= _PLAIN_SECONDS:
            self._spoke = time.monotonic()
            self._say(note)

    def advance(self, count: int = 1) -> None:
        """Count ``count`` more units as finished."""
        self.update(self._done + count)

    def speed(self) -> str:
        """Rate and time left, as far as they are known: "2.1 steps/s, 0:01:10 left"."""
        seconds = time.monotonic() - self._began
        work = self._done - self._skipped
        if work <= 0 or seconds <= 0:
            return ""
        rate = work / seconds
        per = f"{rate:.1f} {self._unit}/s" if rate >= 1 else f"{60 * rate:.1f} {self._unit}/min"
        if self._total is None or self._done >= self._total:
            return per
        return f"{per}, {clock((self._total - self._done) / rate)} left"

    def _say(self, note: str = "") -> None:
        count = f"{self._done}" if self._total is None else f"{self._done}/{self._total}"
        parts = (f"{count} {self._unit}", self.speed(), note)
        print(f"{self._label}: {', '.join(part for part in parts if part)}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(3725)
    '1:02:05'
    """
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number for a table; a dash where there is none.

    >>> number(0.53125), number(float("nan"))
    ('0.531', '-')
    """
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def interval(value: float, low: float, high: float) -> str:
    """Format a number with its interval.

    >>> interval(0.5, 0.25, 0.75)
    '0.500 (0.250-0.750)'
    """
    return number(value) if math.isnan(low) else f"{value:.3f} ({low:.3f}-{high:.3f})"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    item: Callable[[], object] | None = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:  # a numpy number
        return _plain(item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)


def _numeric_columns(rows: Sequence[Sequence[str]], count: int) -> list[bool]:
    return [all(row[i][:1] in "0123456789+-" for row in rows) for i in range(count)]


def _rich_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    right = _numeric_columns(rows, len(columns))
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if right[index] else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    RichConsole(file=sys.stdout, highlight=False).print(table)


def _rich_progress(unit: str) -> Any:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=RichConsole(file=sys.stderr, highlight=False),
        transient=True,
    )
