"""Answer classes of one question: which rollouts gave the same answer (the classes that votes are over).

Most pairs are decided here, as strings or exact numbers. The rest goes to a worker process, started when
first needed with ``sys.executable -m dttrl.answers.worker``; this side holds the wall clock of each pair,
which runs from the moment that a ready worker has been given the pair, and kills and replaces a worker that
exceeds it. Text of a model is never evaluated in this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import numpy as np
from numpy.typing import NDArray

import dttrl
from dttrl.answers.equivalence import Verdict, exact_equal, plain_number
from dttrl.answers.extraction import AnswerKind
from dttrl.answers.normalization import normalize
from dttrl.errors import WorkError

START_TIMEOUT_S: Final = 60.0
"""How long a worker may take to import what it needs, which is not counted against a pair."""
MAX_ALGEBRA_LENGTH: Final = 400

_SENDABLE: Final = re.compile(rf"[ -~≠≈]{{1,{MAX_ALGEBRA_LENGTH}}}")
_REFUSED: Final = re.compile(r"__|\"|\d{101}|\^\{?[-+]?\d{12}|[(\[{]{40}")


def sendable(normalized: str) -> bool:
    """Tell whether a normalised answer may go to the worker: short, plain characters, no absurd number."""
    return _SENDABLE.fullmatch(normalized) is not None and _REFUSED.search(normalized) is None


class Grader:
    """Decides whether answers are equal, and groups answers into classes; close it, or use it in ``with``.

    Args:
        kind: ``choice`` and ``text`` compare normalised strings only; others use everything.
        timeout_s: wall clock of one pair in the worker, in seconds.
        memory_mb: address space of the worker, in MiB (not on Windows).
        use_algebra: False never starts a worker; undecided pairs are then UNKNOWN.

    ``counters`` counts distinct pairs: ``pairs``, and of these ``string`` (equal or unlike as strings),
    ``exact``, ``algebra`` (decided by the worker), ``unknown``; ``killed`` counts workers that had to be
    killed or died.
    Instances may be shared by threads. A forked child starts a worker of its own.

    """

    def __init__(
        self,
        *,
        kind: AnswerKind = "math",
        timeout_s: float = 2.0,
        memory_mb: int = 1024,
        use_algebra: bool = True,
    ) -> None:
        self.kind = kind
        self.counters: dict[str, int] = dict.fromkeys(
            ("pairs", "string", "exact", "algebra", "unknown", "killed"), 0
        )
        self._use_algebra = use_algebra and kind in ("math", "integer")
        self._timeout_s = timeout_s
        self._command = _worker_command(timeout_s, memory_mb)
        self._worker: _Worker | None = None
        self._cache: dict[tuple[str, str], Verdict] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker, if one was started; the grader may be used again."""
        with self._lock:
            if self._worker is not None:
                self._worker.close()
                self._worker = None

    def key(self, answer: str | None) -> str:
        """Return the normalised answer as this kind compares it; ``""`` when there is none."""
        if answer is None:
            return ""
        if self.kind == "text":
            return _plain_text(answer)
        normalized = normalize(answer)
        if self.kind == "choice" and len(normalized) == 1:
            return normalized.upper()
        return normalized

    def equal(self, a: str, b: str) -> Verdict:
        """Whether two answers are the same; symmetric, and cached by normalised pair."""
        return self._equal_keys(self.key(a), self.key(b))

    def _equal_keys(self, first: str, second: str) -> Verdict:
        if not first or not second:
            return Verdict.NO
        pair = (first, second) if first <= second else (second, first)
        with self._lock:
            verdict = self._cache.get(pair)
            if verdict is None:
                self.counters["pairs"] += 1
                verdict = self._decide(*pair)
                self._cache[pair] = verdict
        return verdict

    def _decide(self, first: str, second: str) -> Verdict:
        if first == second or self.kind in ("choice", "text"):
            self.counters["string"] += 1
            return Verdict.YES if first == second else Verdict.NO
        verdict = exact_equal(first, second)
        if verdict is not None:
            self.counters["unknown" if verdict is Verdict.UNKNOWN else "exact"] += 1
            return verdict
        verdict = Verdict.UNKNOWN
        if self._use_algebra and sendable(first) and sendable(second):
            verdict = self._ask(first, second)
        self.counters["unknown" if verdict is Verdict.UNKNOWN else "algebra"] += 1
        return verdict

    def _ask(self, first: str, second: str) -> Verdict:
        worker = self._worker
        if worker is None or not worker.usable:
            worker = self._worker = _Worker(self._command)
        verdict = worker.ask(first, second, self._timeout_s)
        if verdict is None:
            self.counters["killed"] += 1
            worker.kill()
            self._worker = None
            return Verdict.UNKNOWN
        return verdict

    def classes(self, answers: Sequence[str | None]) -> NDArray[np.int32]:
        """Class of each answer: (N,) int32, dense from 0 in order of first appearance, -1 for no answer.

        Distinct spellings are taken in a fixed order, longest first, and each joins the first class whose
        representative it equals; the partition therefore depends on the set of spellings only. Longest first
        keeps ``12 cm`` and ``12 m`` apart when a bare ``12`` equals both.
        """
        keys = [self.key(answer) for answer in answers]
        group_of = self._groups(set(keys) - {""})
        ids: dict[str, int] = {}
        class_N = np.full(len(keys), -1, dtype=np.int32)
        for index, key in enumerate(keys):
            if key:
                class_N[index] = ids.setdefault(group_of[key], len(ids))
        return class_N

    def _groups(self, spellings: Iterable[str]) -> dict[str, str]:
        """Return the representative of each spelling; bare numbers are grouped by value, not compared."""
        representative: dict[str, str] = {}
        by_value: dict[Fraction, str] = {}
        numeric: set[str] = set()
        heads: list[str] = []
        mathematical = self.kind in ("math", "integer")
        for key in sorted(spellings, key=lambda k: (-len(k), k)):
            value = plain_number(key) if mathematical else None
            if value is not None and value in by_value:
                representative[key] = by_value[value]
                continue
            others = [h for h in heads if h not in numeric] if value is not None else heads
            head = next((h for h in others if self._equal_keys(h, key) is Verdict.YES), None)
            if head is None:
                head = key
                heads.append(key)
                if value is not None:
                    numeric.add(key)
            if value is not None:
                by_value[value] = head
            representative[key] = head
        return representative

    def match(self, gold: str, representatives: Sequence[str]) -> int:
        """Index of the first representative that equals the reference answer, or -1."""
        key = self.key(gold)
        for index, representative in enumerate(representatives):
            if self._equal_keys(key, self.key(representative)) is Verdict.YES:
                return index
        return -1

    def spelling(self, answers: Sequence[str | None], class_N: NDArray[np.int32]) -> list[str]:
        """Per class, its most frequent spelling; then the shortest, then the first in code-point order."""
        counts: list[Counter[str]] = [Counter() for _ in range(int(class_N.max(initial=-1)) + 1)]
        for answer, class_id in zip(answers, class_N.tolist(), strict=True):
            if class_id >= 0 and answer is not None:
                counts[class_id][answer.strip()] += 1
        ranked = [sorted((-n, len(spelling), spelling) for spelling, n in c.items()) for c in counts]
        return [best[0][2] for best in ranked]


def _plain_text(answer: str) -> str:
    """Words: one spacing, no case, no markup around, no full stop."""
    unwrapped = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}", r"\1", answer)
    return " ".join(unwrapped.split()).strip("*_`$\"'.,;: ").casefold()


def _worker_command(timeout_s: float, memory_mb: int) -> list[str]:
    # -P: no module of the working directory may shadow ours.
    options = ["--memory-mb", str(memory_mb), "--seconds", str(timeout_s)]
    return [sys.executable, "-P", "-m", "dttrl.answers.worker", *options]


def _worker_environment() -> dict[str, str]:
    """One thread, and the folder of this package on the path where it is not installed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    root = Path(dttrl.__file__).resolve().parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    return environment


class _Worker:
    """One worker process and the thread that reads its replies."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_worker_environment(),
            start_new_session=os.name == "posix",  # Ctrl-C is for the parent
        )
        self._owner = os.getpid()
        self._next_id = 0
        self._replies: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: IO[bytes] = self._process.stdin
        threading.Thread(
            target=_read_replies,
            args=(self._process.stdout, self._replies),
            name="dttrl-grading",
            daemon=True,
        ).start()
        ready = self._receive(START_TIMEOUT_S)
        if ready is None or not ready.get("ready"):
            self.kill()
            raise WorkError(
                f"the grading worker did not start (exit code {self._process.poll()}): run "
                f"`{' '.join(command)}` to see why, raise memory_mb, or use use_algebra=False"
            )

    @property
    def usable(self) -> bool:
        """False in a forked child (the pipes are the parent's) and after the process has ended."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, a: str, b: str, timeout_s: float) -> Verdict | None:
        """Return the verdict on a pair, or None when the worker took too long or died."""
        self._next_id += 1
        request = json.dumps({"id": self._next_id, "a": a, "b": b}) + "\n"
        try:
            self._stdin.write(request.encode("ascii"))
            self._stdin.flush()
        except OSError:
            return None
        deadline = time.monotonic() + timeout_s
        while (reply := self._receive(deadline - time.monotonic())) is not None:
            if reply.get("id") == self._next_id:  # an earlier id: its asker was interrupted
                return Verdict(reply["verdict"])
        return None

    def _receive(self, timeout_s: float) -> dict[str, object] | None:
        try:
            return self._replies.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def kill(self) -> None:
        """End the process at once."""
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            self._close_pipe()

    def close(self) -> None:
        """Let the process end by itself; kill it if it doesn't."""
        if self._owner != os.getpid():
            return
        self._close_pipe()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close_pipe(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()


def _read_replies(stream: IO[bytes], replies: queue.SimpleQueue[dict[str, object] | None]) -> None:
    with stream:
        for line in stream:
            try:
                replies.put(json.loads(line))
            except ValueError:
                break
    replies.put(None)
