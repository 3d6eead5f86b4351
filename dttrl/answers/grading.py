"""Answer classes of one question: which rollouts gave the same answer (the classes that votes are over).

Most pairs are decided here, as strings or exact numbers. The rest goes to a worker process, started when
first needed with ``sys.executable -m dttrl.answers.worker``; this side holds the wall clock of each pair,
which runs from the moment that a ready worker has been given the pair, and kills and replaces a worker that
exceeds it. Text of a model is never evaluated in this process.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from types import TracebackType
from typing import Final, Self, cast, get_args

import numpy as np
from numpy.typing import NDArray

from dttrl.answers.equivalence import Verdict, exact_equal_normalized, plain_number
from dttrl.answers.extraction import AnswerKind, Extraction, extract
from dttrl.answers.kinds import AUTO, CustomGrader, kind_of_source, load_grader
from dttrl.answers.normalization import normalize
from dttrl.answers.worker_process import WorkerProcess, worker_command

MAX_ALGEBRA_LENGTH: Final = 400

_SENDABLE: Final = re.compile(rf"[ -~≠≈]{{1,{MAX_ALGEBRA_LENGTH}}}")
_REFUSED: Final = re.compile(r"__|\"|\d{101}|\^\{?[-+]?\d{12}|[(\[{]{40}")


def sendable(normalized: str) -> bool:
    """Tell whether a normalised answer may go to the worker: short, plain characters, no absurd number."""
    return _SENDABLE.fullmatch(normalized) is not None and _REFUSED.search(normalized) is None


class Grader:
    """Decides whether answers are equal, and groups answers into classes; close it, or use it in ``with``.

    Of the kinds, ``choice`` and ``text`` compare normalised strings only, ``math`` and ``integer`` use
    everything; any other name is that of a custom grader (:mod:`dttrl.answers.kinds`). ``auto`` is math until
    :meth:`for_source` chooses by the name of the question's data set. ``timeout_s`` is the wall clock of one
    pair in the worker, in seconds, ``memory_mb`` the worker's address space, in MiB (not on Windows); without
    ``use_algebra`` no worker is started, and undecided pairs are UNKNOWN.

    ``counters`` counts distinct pairs: ``pairs``, and of these ``string`` (equal or unlike as strings),
    ``exact``, ``algebra`` (decided by the worker), ``custom`` (by a custom grader), ``unknown``; ``killed``
    counts workers that had to be killed or died.
    Instances may be shared by threads. A forked child starts a worker of its own.
    """

    def __init__(
        self,
        *,
        kind: str = AUTO,
        timeout_s: float = 2.0,
        memory_mb: int = 1024,
        use_algebra: bool = True,
    ) -> None:
        self.auto = kind == AUTO
        self.kind = "math" if self.auto else kind
        self.custom: CustomGrader | None = None
        if self.kind not in get_args(AnswerKind):
            self.custom = load_grader(self.kind)
        self.counters: dict[str, int] = dict.fromkeys(
            ("pairs", "string", "exact", "algebra", "custom", "unknown", "killed"), 0
        )
        self._use_algebra = use_algebra
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._command = worker_command(timeout_s, memory_mb)
        self._worker: WorkerProcess | None = None
        self._of_kind: dict[str, Grader] = {}
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
            for grader in self._of_kind.values():
                grader.close()

    def for_source(self, source: str | None, query_id: str = "") -> Grader:
        """Return the grader of a question: of its data set's kind when this one is ``auto``, else this one.

        It counts into the same counters and is closed with this one.
        """
        kind = kind_of_source(source, query_id) if self.auto else self.kind
        if kind == self.kind:
            return self
        with self._lock:
            if kind not in self._of_kind:
                grader = Grader(
                    kind=kind,
                    timeout_s=self._timeout_s,
                    memory_mb=self._memory_mb,
                    use_algebra=self._use_algebra,
                )
                grader.counters = self.counters
                self._of_kind[kind] = grader
            return self._of_kind[kind]

    def extract(self, text: str, *, last_number: bool = False) -> Extraction:
        """Find the final answer of a completion, as this kind of answer is found."""
        if self.custom is not None:
            return self.custom.extract(text)
        return extract(text, kind=cast(AnswerKind, self.kind), last_number=last_number)

    def key(self, answer: str | None) -> str:
        """Return the normalised answer as this kind compares it; ``""`` when there is none."""
        if answer is None:
            return ""
        if self.custom is not None:
            return answer.strip()
        if self.kind == "text":
            return plain_text(answer)
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
        if self.custom is not None and first != second:
            own = self.custom.verdict(first, second)
            self.counters["unknown" if own is Verdict.UNKNOWN else "custom"] += 1
            return own
        if first == second or self.kind in ("choice", "text"):
            self.counters["string"] += 1
            return Verdict.YES if first == second else Verdict.NO
        verdict = exact_equal_normalized(first, second)
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
            worker = self._worker = WorkerProcess(self._command)
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
        equal = (self.equal(gold, representative) is Verdict.YES for representative in representatives)
        return next((index for index, same in enumerate(equal) if same), -1)

    def spelling(self, answers: Sequence[str | None], class_N: NDArray[np.int32]) -> list[str]:
        """Per class, its most frequent spelling; then the shortest, then the first in code-point order."""
        counts: list[Counter[str]] = [Counter() for _ in range(int(class_N.max(initial=-1)) + 1)]
        for answer, class_id in zip(answers, class_N.tolist(), strict=True):
            if class_id >= 0 and answer is not None:
                counts[class_id][answer.strip()] += 1
        ranked = [sorted((-n, len(spelling), spelling) for spelling, n in c.items()) for c in counts]
        return [best[0][2] for best in ranked]


def plain_text(answer: str) -> str:
    """Words: one spacing, no case, no markup around, no full stop."""
    unwrapped = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}", r"\1", answer)
    return " ".join(unwrapped.split()).strip("*_`$\"'.,;: ").casefold()
