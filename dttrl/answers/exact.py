"""Nodes of a reading, folded to an exact rational number wherever that is possible and small.

Nothing here allocates more than :data:`MAX_BITS` bits for one number, whatever the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, comb, factorial, floor, gcd, lcm
from typing import Final

MAX_BITS: Final = 32_768
"""Largest numerator or denominator that is ever computed."""
MAX_HEIGHT: Final = 120
"""Deepest tree of nodes; deeper readings would meet Python's recursion limit."""


class UnreadableError(ValueError):
    """The text is no expression that the parser knows."""


class BrokenError(UnreadableError):
    """The text can't be read (unbalanced brackets, an empty argument, a division by zero), or in two ways."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a reading.

    ``value`` belongs to ``op == "num"``; ``name`` to symbols (``sym``), functions (``call``), brackets
    (``group``), relations (``rel``) and unread text (``text``, ``opaque``, ``broken``).
    """

    op: str
    args: tuple[Node, ...] = ()
    value: Fraction = Fraction(0)
    name: str = ""
    height: int = field(default=1, compare=False)


INFINITY: Final = Node("inf")


def number(value: Fraction | int) -> Node:
    """Make a rational constant; raises :class:`UnreadableError` above :data:`MAX_BITS`."""
    value = Fraction(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise UnreadableError("number too large")
    return Node("num", value=value)


def symbol(name: str) -> Node:
    """Make a variable, or one of the constants ``pi``, ``e`` and ``i``."""
    return Node("sym", name=name)


def make(op: str, *args: Node, name: str = "") -> Node:
    """Make a node, folded to a number when its arguments are numbers and the result is exact and small.

    >>> make("div", number(6), number(4)).value
    Fraction(3, 2)
    """
    if all(a.op == "num" for a in args):
        folded = _fold(op, [a.value for a in args], name)
        if folded is not None:
            return number(folded)
    height = 1 + max(a.height for a in args)
    if height > MAX_HEIGHT:
        raise UnreadableError("nested too deeply")
    return Node(op, args, name=name, height=height)


def _divide(a: Fraction, b: Fraction) -> Fraction:
    if not b:
        raise BrokenError("division by zero")
    return a / b


_ARITHMETIC: Final[dict[str, Callable[..., Fraction | None]]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "pow": lambda a, b: _power(a, b),
    "max": lambda *a: max(a),
    "min": lambda *a: min(a),
    "floor": lambda a: Fraction(floor(a)),
    "ceil": lambda a: Fraction(ceil(a)),
}


def _fold(op: str, values: Sequence[Fraction], name: str) -> Fraction | None:
    rule = _ARITHMETIC.get(name or op)
    if rule is not None:
        return rule(*values)
    if any(v.denominator != 1 for v in values):
        return None
    integers = [int(v) for v in values]
    if op == "fact":
        return Fraction(factorial(integers[0])) if 0 <= integers[0] <= 3000 else None
    if op == "binom":
        n, k = integers
        return Fraction(comb(n, k)) if 0 <= k <= n <= 5000 else None
    if name in ("gcd", "lcm"):
        return Fraction(gcd(*integers) if name == "gcd" else lcm(*integers))
    return None


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if not base and exponent <= 0:
        if exponent < 0:
            raise BrokenError("division by zero")
        return None
    if not base:
        return base
    if exponent.denominator != 1:
        root = _exact_root(base, exponent.denominator)
        if root is None:
            return None
        base, exponent = root, Fraction(exponent.numerator)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.numerator.bit_length() > 32 or (bits > 1 and bits * abs(exponent) > MAX_BITS):
        return None if bits > 1 else base ** (exponent.numerator % 2)
    return base ** int(exponent)


def _exact_root(base: Fraction, degree: int) -> Fraction | None:
    """Return the rational root, real for odd degrees; None when it is irrational or the degree is large."""
    if degree > 64 or (base < 0 and degree % 2 == 0):
        return None
    top, bottom = _integer_root(abs(base.numerator), degree), _integer_root(base.denominator, degree)
    if top is None or bottom is None:
        return None
    return Fraction(top if base >= 0 else -top, bottom)


def _integer_root(n: int, degree: int) -> int | None:
    """Newton's method from above; None unless n is a perfect power."""
    if n < 2:
        return n
    guess = 1 << -(-n.bit_length() // degree)
    while True:
        lower = ((degree - 1) * guess + n // guess ** (degree - 1)) // degree
        if lower >= guess:
            return guess if guess**degree == n else None
        guess = lower
