"""Floating-point values with error bounds: the quick look that can say that two expressions differ.

Every value carries a bound on its rounding error, widened at each step, so that two values further apart than
their bounds are different for certain. Variables get one positive value each. Only real arithmetic is done;
whatever has no bound here (complex values, logarithms without a base, steps, overflow) has no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from dttrl.answers.exact import Node

_EPS: Final = 2.0**-50
_LARGEST: Final = 1e12
_ONE_TO_ONE: Final[dict[str, Callable[[float], float]]] = {
    "sin": math.sin, "cos": math.cos, "arctan": math.atan, "tanh": math.tanh,
}  # fmt: skip
"""Functions whose slope is at most 1."""

_Bounded = tuple[float, float]


class _NoBoundError(ValueError):
    """There is no bound here."""


def clearly_apart(a: Node, b: Node) -> bool:
    """Whether two scalar readings differ for certain; False says nothing."""
    try:
        (first, error), (second, other_error) = _bounded(a), _bounded(b)
    except (_NoBoundError, ArithmeticError, ValueError):
        return False
    return abs(first - second) > 4 * (error + other_error) + 1e-9 * (abs(first) + abs(second))


def _bounded(node: Node) -> _Bounded:
    if node.op == "num":
        value = float(node.value)
        result = (value, abs(value) * _EPS)
    elif node.op == "sym":
        value = _value_of(node.name)
        result = (value, value * _EPS)
    elif node.op in _RULES:
        result = _RULES[node.op](*(_bounded(arg) for arg in node.args))
    elif node.op == "call" and len(node.args) == 1:
        result = _call(node.name, *_bounded(node.args[0]))
    else:
        raise _NoBoundError(node.op)
    value, error = result
    if not abs(value) < _LARGEST or not error < 1.0:
        raise _NoBoundError("too large or too uncertain")
    return value, error + abs(value) * _EPS


def _value_of(name: str) -> float:
    """Return pi, e, or a value between 1 and 3 that only depends on the variable's name."""
    if name in ("pi", "e"):
        return math.pi if name == "pi" else math.e
    if name == "i":
        raise _NoBoundError("i")
    spread: int = sum(ord(char) * 37 ** (place % 8) for place, char in enumerate(name)) % 10_007
    return 1.0 + 2.0 * (spread + 0.5) / 10_007


def _multiply(a: _Bounded, b: _Bounded) -> _Bounded:
    return a[0] * b[0], abs(a[0]) * b[1] + abs(b[0]) * a[1] + a[1] * b[1]


def _divide(a: _Bounded, b: _Bounded) -> _Bounded:
    if abs(b[0]) <= 4 * b[1] or abs(b[0]) < 1e-6:
        raise _NoBoundError("a division by almost nothing")
    value = a[0] / b[0]
    return value, 2 * (a[1] + abs(value) * b[1]) / abs(b[0])


def _logarithm(value: float, error: float) -> _Bounded:
    if value <= 4 * error or value < 1e-6:
        raise _NoBoundError("a logarithm of almost nothing")
    return math.log(value), 2 * error / value


def _exponential(value: float, error: float) -> _Bounded:
    result = math.exp(value)
    return result, result * 2 * error


def _power(base: _Bounded, exponent: _Bounded) -> _Bounded:
    return _exponential(*_multiply(exponent, _logarithm(*base)))


def _call(name: str, value: float, error: float) -> _Bounded:
    if name in _ONE_TO_ONE:
        return _ONE_TO_ONE[name](value), error
    one, sine, cosine = (1.0, 0.0), (math.sin(value), error), (math.cos(value), error)
    quotients = {"tan": (sine, cosine), "sec": (one, cosine), "cot": (cosine, sine), "csc": (one, sine)}
    if name in quotients:
        return _divide(*quotients[name])
    if name == "exp":
        return _exponential(value, error)
    if name == "ln":
        return _logarithm(value, error)
    raise _NoBoundError(name)


_RULES: Final[dict[str, Callable[..., _Bounded]]] = {
    "neg": lambda a: (-a[0], a[1]),
    "abs": lambda a: (abs(a[0]), a[1]),
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "mul": _multiply,
    "div": _divide,
    "pow": _power,
}
