"""The worker process behind :class:`dttrl.answers.grading.Grader`: ``python -m dttrl.answers.worker``.

Reads one JSON object a line, ``{"id": 1, "a": ..., "b": ...}`` (normalised answers), and writes
``{"id": 1, "verdict": "yes" | "no" | "unknown"}``; the first line it writes is ``{"ready": true}``, after its
imports. It limits its own memory (``--memory-mb``) and, before each pair, its processor time (``--seconds``),
so that it ends even when its parent is gone. It holds no wall clock: the parent does, and kills it.

Order of decision: complete readings are evaluated (:mod:`dttrl.answers.agreement`). Text that our
parser can't read goes to math-verify, its own time-outs off, in both directions, which must agree; a YES
stands only if math-verify's reading kept every number, letter and command of the text (it drops what it
can't read: ``3*x-1*y+13=0`` and ``3x + 4y + 14=0`` are both 0 to it).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import sys
from importlib import import_module
from typing import Any, Final, TextIO

from dttrl.answers.equivalence import Verdict, compare

_KEPT_AS: Final = {
    "int": "Integral", "sum": "Sum", "prod": "Product", "lim": "Limit", "sqrt": "Pow", "frac": "",
    "infty": "oo", "sin": "sin", "cos": "cos", "tan": "tan", "ln": "log", "log": "log", "pi": "pi",
    "lfloor": "floor", "rfloor": "floor", "lceil": "ceiling", "rceil": "ceiling", "cup": "Union",
    "cap": "Intersection", "to": "", "binom": "binomial", "exp": "exp", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "in": "Contains",
}  # fmt: skip
_ALGEBRA_REFUSED: Final = re.compile(r"\^\{[^{}]*\^|\^[^{]\^|\^\{?-?\d{4}|\d{5}!")
_GREEK: Final = frozenset({
    "alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "rho",
    "sigma", "tau", "phi", "psi", "omega", "epsilon",
})  # fmt: skip


def main() -> None:
    """Serve pairs until standard input ends."""
    parser = argparse.ArgumentParser(description="Grading worker; started by dttrl, not by hand.")
    parser.add_argument("--memory-mb", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    replies = _private_stdout()
    _limit("RLIMIT_AS", options.memory_mb * 2**20)
    logging.disable(logging.CRITICAL)
    judge = Judge()
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        _limit_processor_time(options.seconds)
        verdict, fatal = judge.safely(request["a"], request["b"])
        _reply(replies, {"id": request["id"], "verdict": verdict.value})
        if fatal:  # memory is fragmented; a fresh process is cheaper than finding out
            return


def _private_stdout() -> TextIO:
    """Our own handle on standard output; whatever a library prints goes nowhere."""
    handle = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    return handle


def _reply(stream: TextIO, message: dict[str, object]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _limit(name: str, soft: int) -> None:
    """Set a soft resource limit where the platform knows it (not on Windows; macOS refuses some)."""
    with contextlib.suppress(ImportError, AttributeError, ValueError, OSError):
        resource: Any = import_module("resource")
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _limit_processor_time(seconds: float) -> None:
    used = os.times()
    _limit("RLIMIT_CPU", int(used.user + used.system + 2 * seconds) + 2)


class Judge:
    """Decides pairs of normalised answers; imports everything it needs when created."""

    def __init__(self) -> None:
        self.agreement = import_module("dttrl.answers.agreement").Agreement
        self.math_verify: Any = None
        with contextlib.suppress(ImportError):
            self.math_verify = import_module("math_verify")
            self.sympy = import_module("sympy")
            self.safely(r"\sum_{k=1}^3k", "6")  # what is slow only once is done before the first pair

    def safely(self, a: str, b: str) -> tuple[Verdict, bool]:
        """Return the verdict, and whether the process should end afterwards."""
        try:
            return self.verdict(a, b), False
        except MemoryError:
            return Verdict.UNKNOWN, True
        except Exception:  # a library's failure on model text is no failure of ours
            return Verdict.UNKNOWN, False

    def verdict(self, a: str, b: str) -> Verdict:
        """Evaluation where both were read completely; math-verify for what our parser can't read."""
        found = compare(a, b, self.agreement().leaf)
        if found is not None:
            return found
        if self.math_verify is None or _ALGEBRA_REFUSED.search(a + " " + b):
            return Verdict.UNKNOWN
        return self._by_algebra(_without_unit(a), _without_unit(b))

    def _by_algebra(self, a: str, b: str) -> Verdict:
        first, second = self._parse(a), self._parse(b)
        if first is None or second is None:
            return Verdict.UNKNOWN
        agreed = [
            self.math_verify.verify([x], [y], timeout_seconds=None, raise_on_error=True)
            for x, y in ((first, second), (second, first))
        ]
        kept = self._kept_all(a, first) and self._kept_all(b, second)
        if not any(agreed):
            unevaluated = re.search(r"Sum|Integral|Product|Limit", self.sympy.srepr([first, second]))
            return Verdict.YES if unevaluated and kept and self._exactly(first, second) else Verdict.NO
        return Verdict.YES if all(agreed) and kept and self._exactly(first, second) else Verdict.UNKNOWN

    def _exactly(self, first: Any, second: Any) -> bool:
        """Whether sympy reduces the difference to zero: math-verify also accepts equal decimals."""
        if first == second:
            return True
        if not (isinstance(first, self.sympy.Expr) and isinstance(second, self.sympy.Expr)):
            return bool(first.doit() == second.doit())
        return bool(self.sympy.simplify((first - second).doit()) == 0)

    def _parse(self, text: str) -> Any:
        """Math-verify's reading as a sympy object, without its fall-back to strings and to ``parse_expr``."""
        found = self.math_verify.parse(
            f"${text}$",
            extraction_config=[self.math_verify.LatexExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
        return found[0] if len(found) == 1 and not isinstance(found[0], str) else None

    def _kept_all(self, text: str, parsed: Any) -> bool:
        """Tell whether the reading holds every integer, letter and command; decimals are never trusted."""
        shown = self.sympy.srepr(parsed)
        if re.search(r"\d\.\d|\.\d", text) or re.search(r"[^ -~]|['\"`@#$%&:;?~]", text):
            return False
        digits = set(re.findall(r"\d+", shown))
        if not all(str(int(run)) in digits for run in re.findall(r"\d+", text)):
            return False
        for command in re.findall(r"\\([a-zA-Z]+)", text):
            if command in _GREEK:
                if command not in shown:
                    return False
            elif command not in _KEPT_AS or _KEPT_AS[command] not in shown:
                return False
        letters = set(re.findall(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", " ", text)))
        names = set("".join(re.findall(r"(?:Symbol|Function)\('([^']*)'", shown)))
        constants = {"d"} if "Integral" in shown else set()
        constants |= {"e"} if "exp" in shown or "E" in shown else set()
        constants |= {"i"} if re.search(r"\bI\b|ImaginaryUnit", shown) else set()
        return letters <= names | constants


def _without_unit(text: str) -> str:
    return re.sub(r"\\unit\{[^{}]*\}$", "", text)


if __name__ == "__main__":
    main()
