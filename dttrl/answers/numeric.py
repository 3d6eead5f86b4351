r"""High-precision evaluation of readings: how the worker finds out that two of them differ.

Two closed forms agree when they do to some 200 digits; two expressions with variables when they agree at
several points drawn once and for all (positive ones, and others of either sign at which both are defined in
the real numbers, so that ``\sqrt{1/n}`` may be ``1/\sqrt{n}`` but ``\sqrt{x^2}`` isn't ``x``). A YES from
here is no proof (:mod:`dttrl.answers.proof` gives one), a NO is final. Works on
:class:`~dttrl.answers.exact.Node` trees only, which come from a complete reading. Needs mpmath, which comes
with sympy; runs in the worker.
"""

from __future__ import annotations

import random
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from dttrl.answers.equivalence import Verdict, exact_leaf
from dttrl.answers.exact import Node

DIGITS: Final = 300
_AGREE: Final = 200
_FEW: Final = 50
_MAX_MAGNITUDE: Final = 10_000_000
"""Largest binary exponent of an intermediate value."""
_MAX_MORE_DIGITS: Final = 5_000
_POSITIVE: Final = 6
_ANY_SIGN: Final = 6

mp: Any = import_module("mpmath").mp
_ELEMENTARY: Final = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "exp": "exp",
    "floor": "floor", "ceil": "ceil",
}  # fmt: skip


_Point = tuple[tuple[str, tuple[int, int]], ...]
"""Variables, sorted by name, with their rational values as (numerator, denominator)."""


class _UndefinedError(ValueError):
    """The expression has no value at this point."""


class _TooLargeError(ValueError):
    """A value is too large to be computed."""


def numeric_leaf(a: Node, b: Node) -> Verdict | None:
    """Decide two scalar expressions (or two ``equation`` nodes) numerically.

    Returns:
        YES or NO; UNKNOWN when a value is too large or undefined at too many points; None for unread text.

    """
    exact = exact_leaf(a, b)
    if exact is not None:
        return exact
    if "opaque" in (a.op, b.op):
        return None
    names = sorted(_symbols(a) | _symbols(b))
    variables = [name for name in names if name not in ("pi", "e", "i")]
    try:
        if a.op == "equation":
            return _proportional(a.args[0], b.args[0], variables)
        if not variables:
            return _closed(a, b)
        if _steps(a) or _steps(b):  # floor(x) and ceil(x) - 1 agree wherever we look
            return Verdict.UNKNOWN
        return _everywhere(a, b, variables, real="i" not in names)
    except (_TooLargeError, OverflowError):
        return Verdict.UNKNOWN


def _symbols(node: Node) -> frozenset[str]:
    own = {node.name} if node.op == "sym" else set()
    if node.op == "call" and node.name == "log":
        own = {"log base"}
    return frozenset(own).union(*(_symbols(arg) for arg in node.args))


def _steps(node: Node) -> bool:
    return node.name in ("floor", "ceil") or any(_steps(arg) for arg in node.args)


def _closed(a: Node, b: Node) -> Verdict:
    try:
        equal = _close(a, b, ())
    except _UndefinedError:
        return Verdict.NO
    return Verdict.YES if equal else Verdict.NO


def _everywhere(a: Node, b: Node, variables: list[str], *, real: bool) -> Verdict:
    agreed = 0
    for index in range(_POSITIVE + (_ANY_SIGN if real else 0)):
        positive = index < _POSITIVE
        try:
            equal = _close(a, b, _point(variables, index, positive), real=not positive)
        except _UndefinedError:
            continue
        if not equal:
            return Verdict.NO
        agreed += positive
    return Verdict.YES if agreed >= 3 else Verdict.UNKNOWN


def _proportional(a: Node, b: Node, variables: list[str]) -> Verdict:
    """Whether a/b is the same number at every point: the same equation up to a factor."""
    ratios: list[Any] = []
    for index in range(_POSITIVE + _ANY_SIGN):
        point = _point(variables, index, index < _POSITIVE)
        try:
            (first, size), (second, other_size) = _evaluate(a, point, DIGITS), _evaluate(b, point, DIGITS)
        except _UndefinedError:
            continue
        if max(size, other_size) > _AGREE // 2:
            raise _TooLargeError
        if first and second:
            with mp.workdps(DIGITS):
                ratios.append(first / second)
    if len(ratios) < 3 or not variables:
        return Verdict.UNKNOWN
    with mp.workdps(DIGITS):
        bound = mp.mpf(10) ** -_AGREE * abs(ratios[0])
        return Verdict.YES if all(abs(r - ratios[0]) <= bound for r in ratios) else Verdict.NO


@lru_cache(maxsize=1024)
def _coordinate(name: str, index: int, positive: bool) -> tuple[int, int]:
    generator = random.Random(f"{name}|{index}")
    sign = 1 if positive or generator.random() < 0.3 else -1
    return sign * generator.randrange(200_003, 3_000_017), 1_000_003


def _point(variables: list[str], index: int, positive: bool) -> _Point:
    return tuple((name, _coordinate(name, index, positive or name == "log base")) for name in variables)


def _close(a: Node, b: Node, point: _Point, *, real: bool = False) -> bool:
    """Relative agreement; values that vanish are told from rounding noise by a second, finer evaluation.

    Sums of very unequal terms (``10^{300} + 1``) need as many more digits as their terms are apart.
    """
    if _clearly_apart(a, b, point, real):
        return False
    magnitude = max(_evaluate(a, point, DIGITS, real)[1], _evaluate(b, point, DIGITS, real)[1])
    more = 2 * magnitude if magnitude > _AGREE // 2 and (_has_sum(a) or _has_sum(b)) else 0
    if more > _MAX_MORE_DIGITS:
        raise _TooLargeError
    agree = mp.mpf(10) ** -(_AGREE + more)
    coarse = mp.mpf(0)
    for digits in (DIGITS + more, 3 * (DIGITS + more)):
        first, second = _evaluate(a, point, digits, real)[0], _evaluate(b, point, digits, real)[0]
        with mp.workdps(digits):
            size = max(abs(first), abs(second))
            if abs(first - second) <= agree * size:
                return True
            if size > agree:
                return False
            if digits > DIGITS + more:  # noise has shrunk with the precision, a small value has not
                return bool(size < agree * coarse)
            coarse = size
    return False


def _clearly_apart(a: Node, b: Node, point: _Point, real: bool) -> bool:
    """Whether a quick look, with few digits and moderate values, already shows a difference."""
    (first, size), (second, other_size) = _evaluate(a, point, _FEW, real), _evaluate(b, point, _FEW, real)
    if max(size, other_size) > 10:
        return False
    with mp.workdps(_FEW):
        return bool(abs(first - second) > mp.mpf(10) ** -10)


def _has_sum(node: Node) -> bool:
    return node.op == "add" or any(_has_sum(arg) for arg in node.args)


@lru_cache(maxsize=4096)
def _evaluate(node: Node, point: _Point, digits: int, real: bool = False) -> tuple[Any, int]:
    """Return the value, and the largest power of ten (either way) met on the way to it."""
    evaluation = _Evaluation(dict(point), real)
    with mp.workdps(digits):
        return evaluation.value(node), evaluation.magnitude


class _Evaluation:
    """One evaluation of a tree at one point, at the precision that mp is set to."""

    def __init__(self, point: dict[str, tuple[int, int]], real: bool) -> None:
        self.real = real
        self.point = point
        self.magnitude = 0

    def value(self, node: Node) -> Any:
        if node.op == "num":
            result = mp.mpf(node.value.numerator) / node.value.denominator
        elif node.op == "sym":
            result = _symbol(node.name, self.point)
        elif node.op == "inf":
            raise _UndefinedError
        else:
            result = self.apply(node, [self.value(arg) for arg in node.args])
        if result:
            binary = abs(mp.mag(result))
            if binary > _MAX_MAGNITUDE:
                raise _TooLargeError
            self.magnitude = max(self.magnitude, int(binary * 0.30103))
        return result

    def apply(self, node: Node, arguments: list[Any]) -> Any:
        try:
            result = _apply(node, arguments, self.point)
        except (_TooLargeError, _UndefinedError):
            raise
        except (ZeroDivisionError, ValueError, TypeError) as error:
            raise _UndefinedError from error
        if not mp.isfinite(result) or (self.real and mp.im(result)):  # real arithmetic all the way
            raise _UndefinedError
        return result


def _symbol(name: str, point: dict[str, tuple[int, int]]) -> Any:
    if name in point:
        top, bottom = point[name]
        return mp.mpf(top) / bottom
    return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[name]


def _apply(node: Node, arguments: list[Any], point: dict[str, tuple[int, int]]) -> Any:
    first = arguments[0]
    if node.op == "neg":
        return -first
    if node.op == "abs":
        return abs(first)
    if node.op == "fact":
        return _factorial(first)
    if node.op == "call":
        return _call(node.name, arguments, point)
    second = arguments[1]
    if node.op == "add":
        return first + second
    if node.op == "mul":
        return first * second
    if node.op == "div":
        return first / second
    if node.op == "binom":
        return _factorial(first) / (_factorial(second) * _factorial(first - second))
    if node.op == "pow":
        return _power(first, second, node.args[1])
    raise _UndefinedError


def _power(base: Any, exponent: Any, node: Node) -> Any:
    """Principal value, but the real root of a negative number where the exponent's denominator is odd."""
    if not base:
        if mp.re(exponent) > 0:
            return mp.mpf(0)
        raise _UndefinedError
    if exponent and (mp.mag(exponent) > 64 or abs(exponent) * (abs(mp.mag(base)) + 3) > _MAX_MAGNITUDE):
        raise _TooLargeError
    if mp.im(base) == 0 and mp.re(base) < 0 and node.op == "num" and node.value.denominator % 2:
        return (-1) ** (node.value.numerator % 2) * mp.power(-base, exponent)
    return mp.power(base, exponent)


def _factorial(value: Any) -> Any:
    if mp.im(value):
        raise _UndefinedError
    if abs(value) > 100_000:
        raise _TooLargeError
    return mp.gamma(value + 1)


def _call(name: str, arguments: list[Any], point: dict[str, tuple[int, int]]) -> Any:
    first = arguments[0]
    if name in ("ln", "log", "log_", "lg"):
        if not first:
            raise _UndefinedError
        value = mp.log(first)
        if name == "log":  # its base is not said: an unknown of its own
            return value * _symbol("log base", point)
        return value / mp.log(arguments[1] if name == "log_" else 10) if name != "ln" else value
    if name in ("max", "min"):
        return max(arguments) if name == "max" else min(arguments)
    if name in _ELEMENTARY:
        if mp.mag(first) > 4_000:
            raise _TooLargeError
        return getattr(mp, _ELEMENTARY[name])(first)
    raise _UndefinedError
