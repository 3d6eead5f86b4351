r"""Equality by evaluation: two expressions are equal when they agree to 200 digits wherever we look.

Closed forms are evaluated as they are, expressions with variables at points that are drawn once and for all
from the variables' names: positive ones, and where there are roots, moduli and the like others of either sign
and of many sizes, which count where both sides are real all the way, so that ``\sqrt{1/n}`` may be
``1/\sqrt{n}`` but ``\sqrt{x^2}`` isn't ``x``. Each value is computed twice, the second time with half as many
digits more, and both must agree. A sum whose terms cancel to 200 digits is zero; where terms are far apart,
as in ``10^{300}+1``, twice that many digits more must agree. Agreement is no proof: expressions made of
pieces may differ where we do not look.

The count of the work decides what is too much, and no clock. Works on :class:`~dttrl.answers.exact.Node`
trees only, which come from a complete reading. Needs mpmath, which comes with sympy; runs in the worker.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from dttrl.answers.equivalence import Verdict, exact_leaf
from dttrl.answers.exact import Node

_AGREE: Final = 200
"""Digits that must agree in the first evaluation; in the second it is half as many more."""
_SPOILT: Final = 120
"""Digits that are computed beyond those that must agree."""
_NEAR: Final = 10
"""Terms that are this many digits apart, or less, need no more digits."""
_FAR: Final = 2_500
_MAX_MAGNITUDE: Final = 10_000_000
"""Largest binary exponent of an intermediate value."""
_MAX_WORK: Final = 300_000
"""Work on one pair of answers, about in microseconds."""
_MAX_FACTORIAL_DIGITS: Final = 600
_POSITIVE: Final = (Fraction(1, 4), Fraction(1, 2), 1, 2)
_ENOUGH: Final = 3
"""Positive points at which there must be values."""
_OF_EITHER_SIGN: Final = tuple(
    sign * size
    for size in (Fraction(1, 100), Fraction(1, 10), Fraction(1, 3), 1, 2, 4, 8, 30, 100, 10**4, 10**6)
    for sign in (1, -1)
)
"""Variables at the points where all must be real, up to a factor of 2; only pieces need these points."""
_PIECES: Final = frozenset({"max", "min", "ln", "log", "log_", "lg", "arcsin", "arccos", "arctan"})

mp: Any = import_module("mpmath").mp
_ELEMENTARY: Final = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "exp",
})  # fmt: skip

_Point = tuple[tuple[str, Fraction], ...]
"""Variables, sorted by name, with their values."""


class _NoValueError(ArithmeticError):
    """No value at this point, or none that can be computed."""


class _TooMuchWorkError(Exception):
    """The pair costs more than :data:`_MAX_WORK`."""


class Agreement:
    """Whether the parts of one pair of answers agree; they share what it may cost."""

    def __init__(self) -> None:
        self._work = 0

    def leaf(self, a: Node, b: Node) -> Verdict | None:
        """Decide two scalar expressions (or two ``equation`` nodes, which are equal up to a factor).

        UNKNOWN when they can't be evaluated, or at too few points; None for unread text.
        """
        exact = exact_leaf(a, b)
        if exact is not None:
            return exact
        if "opaque" in (a.op, b.op):
            return None
        nodes = [*_nodes(a), *_nodes(b)]
        points = _points(nodes)
        closed = points == [((), False)]
        if closed and a.op == "equation":  # its sides are numbers, which say nothing
            return Verdict.UNKNOWN
        if not closed and any(node.name in ("floor", "ceil") for node in nodes):
            return Verdict.UNKNOWN  # floor(x) and ceil(x) - 1 agree wherever we look
        try:
            return self._decide(a, b, points)
        except _TooMuchWorkError:
            return Verdict.UNKNOWN

    def _decide(self, a: Node, b: Node, points: Sequence[tuple[_Point, bool]]) -> Verdict:
        equation = a.op == "equation"
        if equation:
            a, b = a.args[0], b.args[0]
        base: tuple[Any, Any] | None = None
        agreed = 0
        for point, real in points:
            values = self._values(a, b, point, real)
            if values is None:
                continue
            first, second, agree = values
            if equation:
                if not first or not second or agree > 3 * _AGREE:
                    continue  # a ratio shows too little of terms that are so far apart
                base = base or (first, second)
                first, second, agree = first * base[1], second * base[0], _AGREE
            if not _same(first, second, agree):
                return Verdict.NO
            agreed += not real
        return Verdict.YES if agreed >= min(_ENOUGH, len(points)) else Verdict.UNKNOWN

    def _values(self, a: Node, b: Node, point: _Point, real: bool) -> tuple[Any, Any, int] | None:
        """Return both values and the digits that must agree; None where one has no steady value."""
        apart = max(self._evaluate(node, point, real, _AGREE, 0)[1] for node in (a, b))
        apart = apart if apart > _NEAR else 0
        if apart > _FAR:
            return None
        agree = _AGREE + 2 * apart
        found: list[Any] = []
        for node in (a, b):
            coarse = self._evaluate(node, point, real, agree, apart)[0]
            fine = self._evaluate(node, point, real, agree * 3 // 2, apart)[0]
            if coarse is None or fine is None or not _same(coarse, fine, agree):
                return None
            found.append(fine)
        return found[0], found[1], agree * 3 // 2

    def _evaluate(self, node: Node, point: _Point, real: bool, agree: int, apart: int) -> tuple[Any, int]:
        value, found, work = _evaluate(node, point, real, agree, apart)
        self._work += work  # known or not: what came before must not decide
        if self._work > _MAX_WORK:
            raise _TooMuchWorkError
        return value, found


def _same(first: Any, second: Any, agree: int) -> bool:
    with mp.workdps(agree + _SPOILT):
        return bool(abs(first - second) <= mp.mpf(10) ** -agree * max(abs(first), abs(second)))


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for arg in node.args:
        yield from _nodes(arg)


def _points(nodes: Sequence[Node]) -> list[tuple[_Point, bool]]:
    """Points, and whether all must be real there; a single one if there are no variables."""
    names = {node.name for node in nodes if node.op == "sym"} - {"pi", "e"}
    names |= {"log base" for node in nodes if node.name == "log"}
    variables = sorted(names - {"i"})
    if not variables:
        return [((), False)]
    columns = [_coordinates(name) for name in variables]
    points = [tuple(zip(variables, values, strict=True)) for values in zip(*columns, strict=True)]
    if "i" in names or not any(map(_has_pieces, nodes)):
        points = points[: len(_POSITIVE)]
    return [(point, index >= len(_POSITIVE)) for index, point in enumerate(points)]


@lru_cache(maxsize=1024)
def _coordinates(name: str) -> tuple[Fraction, ...]:
    """Values of a variable, the same for ever: of all sizes, in an order of its own."""
    generator = random.Random(name)
    sizes = [size for part in (_POSITIVE, _OF_EITHER_SIGN) for size in generator.sample(part, len(part))]
    values = (size * Fraction(generator.randrange(1_000_004, 2_000_006), 1_000_003) for size in sizes)
    return tuple(abs(value) if name == "log base" else value for value in values)


def _has_pieces(node: Node) -> bool:
    """Whether this may be another function elsewhere, so that agreement here says nothing about there."""
    if node.op == "pow":
        base, exponent = node.args
        entire = exponent.op == "num" and exponent.value.denominator == 1
        return not (entire or base.op == "num" or base.name in ("pi", "e"))
    return node.op == "abs" or node.name in _PIECES


@lru_cache(maxsize=4096)
def _evaluate(node: Node, point: _Point, real: bool, agree: int, apart: int) -> tuple[Any, int, int]:
    """Return the value, if any, how many digits the terms of sums are apart, and the work that it took."""
    with mp.workdps(agree + apart + _SPOILT):
        evaluation = _Evaluation(dict(point), real, agree)
        try:
            return evaluation.value(node), evaluation.apart, evaluation.work
        except _NoValueError:
            return None, evaluation.apart, evaluation.work


class _Evaluation:
    """One evaluation of a tree at one point, at the precision that mp is set to."""

    def __init__(self, point: dict[str, Fraction], real: bool, agree: int) -> None:
        self.point = point
        self.real = real
        self.tiny = mp.mpf(10) ** -agree
        self.apart = 0
        self.work = 0

    def value(self, node: Node) -> Any:
        if node.op == "num":
            self.apart = max(self.apart, *map(_length, (node.value.numerator, node.value.denominator)))
            result = mp.mpf(node.value.numerator) / node.value.denominator
        elif node.op == "sym":
            result = self.symbol(node.name)
        else:
            arguments = [self.value(arg) for arg in node.args]
            self.charge(node)
            try:
                result = self.straight(self.apply(node, arguments))
            except (ArithmeticError, ValueError, TypeError) as error:  # poles, complex values in order
                raise _NoValueError from error
            if not mp.isfinite(result) or (self.real and mp.im(result)):
                raise _NoValueError
        if result and abs(mp.mag(result)) > _MAX_MAGNITUDE:
            raise _NoValueError
        return result

    def charge(self, node: Node) -> None:
        """Count an operation before it is done, at the time that it takes on a slow machine."""
        digits = mp.dps
        self.work += digits // 30
        if node.op in ("fact", "binom"):
            self.work += digits**2 // 50
        elif node.op == "pow" and node.args[1].op == "num" and node.args[1].value.denominator <= 2:
            self.work += digits // 3
        elif node.op in ("call", "pow"):
            self.work += digits**2 // 1_000
        if self.work > _MAX_WORK:
            raise _TooMuchWorkError

    def straight(self, value: Any) -> Any:
        """Drop a real or an imaginary part that is only noise, which would choose a branch."""
        real, imaginary = abs(mp.re(value)), abs(mp.im(value))
        if not imaginary or imaginary <= self.tiny * real:
            return mp.re(value)
        return mp.mpc(0, mp.im(value)) if real <= self.tiny * imaginary else value

    def note(self, *values: Any) -> None:
        """Note the size, large or small, of what is added to something or is an argument."""
        self.apart = max(self.apart, *(abs(mp.mag(x)) * 3 // 10 for x in values if x), 0)

    def settled(self, value: Any, *origins: Any) -> Any:
        """Make zero of what is only the noise of the values that it was computed from."""
        self.note(value, *origins)
        return value if abs(value) > self.tiny * max(abs(x) for x in origins) else mp.mpf(0)

    def symbol(self, name: str) -> Any:
        if name in self.point:
            return mp.mpf(self.point[name].numerator) / self.point[name].denominator
        return {"pi": +mp.pi, "e": +mp.e, "i": mp.mpc(0, 1)}[name]

    def apply(self, node: Node, arguments: Sequence[Any]) -> Any:
        match node.op, *arguments:
            case "neg", x:
                return -x
            case "abs", x:
                return abs(x)
            case "add", x, y:
                return self.settled(x + y, x, y)
            case "mul", x, y:
                return x * y
            case "div", x, y:
                return x / y
            case "pow", x, y:
                self.note(y)
                return _power(x, y, node.args[1])
            case "fact", x:
                self.note(x)
                return _factorial(x)
            case "binom", n, k:
                self.note(n, k)
                return _factorial(n) / (_factorial(k) * _factorial(n - k))
            case "call", x, *_:
                return self.call(node.name, x, arguments)
        raise _NoValueError

    def call(self, name: str, x: Any, arguments: Sequence[Any]) -> Any:
        one = mp.mpf(1)
        if name in ("max", "min"):
            return max(arguments) if name == "max" else min(arguments)
        if name in ("floor", "ceil"):
            nearest = mp.nint(x)
            return getattr(mp, name)(x) if self.settled(x - nearest, x, one) else nearest
        if name in ("ln", "log", "log_", "lg"):
            value = self.settled(mp.log(x), one)
            if name == "log":  # its base is not said: an unknown of its own
                return value * self.symbol("log base")
            base = {"ln": mp.e, "lg": 10}.get(name, arguments[-1])
            return value / self.settled(mp.log(base), one)
        if name not in _ELEMENTARY or mp.mag(x) > 4_000:
            raise _NoValueError
        value = getattr(mp, name.replace("arc", "a"))(x)
        self.note(x, mp.exp(x) if name[-1] == "h" else one)  # tanh(1000) is nearly 1
        return value if name == "exp" else self.settled(value, x, one)


def _length(n: int) -> int:
    """Digits of an integer, about, without the zeros at its end."""
    return len(str(n).rstrip("0")) if n.bit_length() < 10_000 else n.bit_length() * 3 // 10


def _power(base: Any, exponent: Any, node: Node) -> Any:
    """Principal value, but the real root of a negative number where the exponent's denominator is odd."""
    if not base:
        if mp.re(exponent) > 0:
            return mp.mpf(0)
        raise _NoValueError
    if exponent and (mp.mag(exponent) > 64 or abs(exponent) * (abs(mp.mag(base)) + 3) > _MAX_MAGNITUDE):
        raise _NoValueError
    if mp.im(base) == 0 and mp.re(base) < 0 and node.op == "num" and node.value.denominator % 2:
        return (-1) ** (node.value.numerator % 2) * mp.power(-base, exponent)
    return mp.power(base, exponent)


def _factorial(value: Any) -> Any:
    """Gamma function by way of large arguments: its series for small ones takes a second the first time."""
    if mp.im(value) or not -1_000 < value < 100_000 or mp.dps > _MAX_FACTORIAL_DIGITS:
        raise _NoValueError
    product = mp.mpf(1)
    steps = max(mp.dps - int(value), 0)
    for k in range(1, steps + 1):
        product *= value + k
    return mp.gamma(value + steps + 1) / product
