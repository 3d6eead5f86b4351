r"""Exact reasons for a YES: the difference of two readings vanishes in :mod:`dttrl.answers.polynomials`.

High-precision arithmetic can only refute. Where it agrees, both readings are written as quotients of sums
in independent generators (powers of primes, :math:`\pi`, e, variables, exponentials, roots), in which the
rules of algebra, of powers and of the trigonometric functions hold by construction, and their difference must
vanish exactly. Variables stand for positive numbers: ``\sqrt{1/n}`` is ``1/\sqrt{n}``; that both sides also
agree at other numbers, where both are real, is checked numerically before. What can't be proved is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import factorial
from typing import Any, Final

from dttrl.answers.exact import Node, UnreadableError, make, symbol
from dttrl.answers.polynomials import ONE, Monomial, Sum, UnprovenError, constant, mp
from dttrl.answers.rewriting import IMAGINARY, Quotient, Rewriter, whole

_MAX_ANGLE: Final = 120
"""Largest denominator of a multiple of pi that is looked for behind an inverse function."""
_STRAIGHT: Final = {"arcsin": "sin", "arccos": "cos", "arctan": "tan"}
_INVERSE: Final = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
_DIGITS: Final = 60
_MAX_FACTORIAL: Final = 1_000
_MAX_SHIFT: Final = 20


def proves_equal(a: Node, b: Node) -> bool:
    """Whether two scalar readings (or two ``equation`` nodes) are equal for certain."""
    try:
        if a.op == b.op == "equation":
            return _proportional(a.args[0], b.args[0])
        proof = _Proof()
        return proof.equal(proof.quotient(a), proof.quotient(b))
    except (UnprovenError, UnreadableError, OverflowError, ZeroDivisionError, RecursionError):
        return False


def _proportional(a: Node, b: Node) -> bool:
    """Whether a = r b for a number r, taken from the terms that hold one product of variables."""
    proof = _Proof()
    first, second = proof.quotient(a), proof.quotient(b)
    generators = proof.generators
    left = generators.multiply(first.top, second.bottom)
    right = generators.multiply(second.top, first.bottom)

    def parts(s: Sum) -> dict[Monomial, Sum]:
        found: dict[Monomial, Sum] = {}
        for monomial, c in s.items():
            numeric = frozenset((n, e) for n, e in monomial if generators.is_number({frozenset({(n, e)}): c}))
            found.setdefault(monomial - numeric, {})[numeric] = c
        return found

    of_left, of_right = parts(left), parts(right)
    common = [m for m in of_left if m in of_right]
    if not common:
        return False
    one, other = of_left[common[0]], of_right[common[0]]
    if not generators.is_number(one) or generators.vanishes(one) or generators.vanishes(other):
        return False
    difference = generators.add(generators.multiply(left, other), generators.multiply(right, one), -1)
    return generators.vanishes(difference)


class _Proof(Rewriter):
    """The conversion of readings; a subtree is converted once."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[Node, Quotient] = {}

    def quotient(self, node: Node) -> Quotient:
        """Return a reading as a quotient; raises :class:`UnprovenError` for what can't be written as one."""
        found = self.known.get(node)
        if found is None:
            found = self.known[node] = self._convert(node)
        return found

    def _convert(self, node: Node) -> Quotient:
        g = self.generators
        if node.op == "num":
            return Quotient(constant(node.value), constant(1))
        if node.op == "sym":
            return whole(self.symbol(node.name))
        if not node.args or node.op in ("list", "group", "matrix", "row", "union", "rel", "label"):
            raise UnprovenError(f"{node.op} is no scalar")
        if node.op == "pow":
            return self.power(*node.args)
        if node.op == "binom":
            n, k = node.args
            below = make("mul", make("fact", k), make("fact", make("add", n, make("neg", k))))
            return self.quotient(make("div", make("fact", n), below))
        if node.name in ("ln", "log", "lg", "log_") and node.args[0].op == "pow":
            inner = node.args[0]
            if inner.args[1].op == "num" and inner.args[1].value.denominator == 1:
                logarithm = Node("call", (inner.args[0], *node.args[1:]), name=node.name)
                return self.quotient(make("mul", inner.args[1], logarithm))
        arguments = [self.quotient(arg) for arg in node.args]
        first = arguments[0]
        if node.op == "neg":
            return Quotient(g.multiply(first.top, constant(-1)), first.bottom)
        if node.op == "abs":
            return self.root(self.times(first, self.conjugate(first)), 2)
        if node.op == "fact":
            return self.factorial(first)
        if node.op == "call":
            return self.call(node.name, arguments)
        second = arguments[1]
        if node.op == "add":
            return self.plus(first, second)
        if node.op == "mul":
            return self.times(first, second)
        if node.op == "div":
            return self.times(first, self.inverse(second))
        raise UnprovenError(node.op)

    @staticmethod
    def symbol(name: str) -> Sum:
        if name == "i":
            return {IMAGINARY: Fraction(1)}
        return {frozenset({(name if name in ("pi", "e") else f"v{name}", Fraction(1))}): Fraction(1)}

    def power(self, base: Node, exponent: Node) -> Quotient:
        if exponent.op == "num":
            degree, times = exponent.value.denominator, exponent.value.numerator
            root = self.quotient(base)
            if degree > 1:
                root = self.root(root, degree)
            return self.integer_power(root, times)
        if base == symbol("e"):
            return self.exponential(self.quotient(exponent))
        logarithm = self.logarithm(self.quotient(base))
        return self.exponential(self.times(self.quotient(exponent), logarithm))

    # --- functions

    def call(self, name: str, arguments: Sequence[Quotient]) -> Quotient:
        first = arguments[0]
        if name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"):
            if first.bottom != constant(1):
                return self.opaque(name, arguments)
            return self.circular(name, first)
        if name == "exp":
            return self.exponential(first)
        if name in ("ln", "log", "lg", "log_"):
            return self.any_logarithm(name, arguments)
        if name in _STRAIGHT:
            return self.angle(name, first)
        if name in ("floor", "ceil"):
            return self.step(name, first)
        if name in ("max", "min"):
            return self.extreme(name, arguments)
        return self.opaque(name, arguments)

    def circular(self, name: str, first: Quotient) -> Quotient:
        """Trigonometric and hyperbolic functions through the exponential."""
        g = self.generators
        turn = constant(1) if name.endswith("h") else {IMAGINARY: Fraction(1)}
        negative = Quotient(g.multiply(first.top, constant(-1)), first.bottom)
        up, down = self.exponential(first, turn), self.exponential(negative, turn)
        sine = Quotient(g.add(up.top, down.top, -1), g.multiply(constant(2), turn))
        cosine = Quotient(g.add(up.top, down.top), constant(2))
        sine, cosine = self.simpler(sine), self.simpler(cosine)
        if name in ("sin", "sinh"):
            return sine
        if name in ("cos", "cosh"):
            return cosine
        if name in ("tan", "tanh"):
            return self.times(sine, self.inverse(cosine))
        if name == "cot":
            return self.times(cosine, self.inverse(sine))
        return self.inverse(cosine if name == "sec" else sine)

    def any_logarithm(self, name: str, arguments: Sequence[Quotient]) -> Quotient:
        value = self.logarithm(arguments[0])
        if name == "ln":
            return value
        if name == "log":  # its base is not said: an unknown of its own
            return self.times(value, whole(self.symbol("log base")))
        base = arguments[1] if name == "log_" else whole(constant(10))
        return self.times(value, self.inverse(self.logarithm(base)))

    def angle(self, name: str, first: Quotient) -> Quotient:
        """Find ``arctan 1`` to be a multiple of pi, and prove it by the function that it inverts."""
        value = self.number(first)
        if value is None:
            return self.opaque(name, [first])
        with mp.workdps(_DIGITS):
            angle = getattr(mp, _INVERSE[name])(value) / mp.pi
            guess = Fraction(str(mp.nstr(mp.re(angle), 40))).limit_denominator(_MAX_ANGLE)
            near = abs(angle - mp.mpf(guess.numerator) / guess.denominator) < mp.mpf(10) ** -35
        if not near:
            return self.opaque(name, [first])
        multiple = whole({frozenset({("pi", Fraction(1))}): guess} if guess else {})
        if not self.equal(self.circular(_STRAIGHT[name], multiple), first):
            raise UnprovenError("an angle")
        return multiple

    def step(self, name: str, first: Quotient) -> Quotient:
        value = self.number(first)
        if value is None or mp.im(value):
            return self.opaque(name, [first])
        with mp.workdps(_DIGITS):
            nearest = int(mp.nint(mp.re(value)))
            clear = abs(value - nearest) > mp.mpf(10) ** -30
            integer = int(mp.floor(value) if name == "floor" else mp.ceil(value)) if clear else nearest
        if not clear and not self.equal(first, whole(constant(nearest))):
            raise UnprovenError("a step")
        return whole(constant(integer))

    def extreme(self, name: str, arguments: Sequence[Quotient]) -> Quotient:
        values = [self.number(argument) for argument in arguments]
        if any(value is None or mp.im(value) for value in values):
            return self.opaque(name, arguments)
        with mp.workdps(_DIGITS):
            chosen = max(values) if name == "max" else min(values)
        return arguments[values.index(chosen)]

    def number(self, q: Quotient) -> Any:
        """Value of a quotient without variables, else None."""
        if not (self.generators.is_number(q.top) and self.generators.is_number(q.bottom)):
            return None
        with mp.workdps(_DIGITS):
            return self.generators.value(q.top) / self.generators.value(q.bottom)

    def factorial(self, q: Quotient) -> Quotient:
        """``(n+2)!`` as ``(n+2)(n+1) n!``."""
        g = self.generators
        if q.bottom != constant(1):
            return self.opaque("fact", [q])
        shift = q.top.get(ONE, Fraction(0))
        rest = {m: c for m, c in q.top.items() if m != ONE}
        if shift.denominator != 1:
            return self.opaque("fact", [q])
        if not rest:
            if not 0 <= shift <= _MAX_FACTORIAL:
                return self.opaque("fact", [q])
            return whole(constant(factorial(int(shift))))
        if abs(shift) > _MAX_SHIFT:
            return self.opaque("fact", [q])
        product = constant(1)
        for step in range(1, int(shift) + 1) if shift > 0 else range(int(shift) + 1, 1):
            product = g.multiply(product, g.add(rest, constant(step)))
        base = self.opaque("fact", [whole(rest)])
        return self.times(base, whole(product) if shift > 0 else self.inverse(whole(product)))

    def opaque(self, name: str, arguments: Sequence[Quotient]) -> Quotient:
        """Make a function value about which only equal arguments say anything."""
        g = self.generators
        sums = tuple(s for q in arguments for s in (q.top, q.bottom))
        for index, (known, stored) in enumerate(g.functions):
            if known == name and len(stored) == len(sums):
                pairs = zip(stored[::2], stored[1::2], arguments, strict=True)
                if all(self.equal(Quotient(top, bottom), q) for top, bottom, q in pairs):
                    return whole({frozenset({(f"c{index}", Fraction(1))}): Fraction(1)})
        g.functions.append((name, sums))
        return whole({frozenset({(f"c{len(g.functions) - 1}", Fraction(1))}): Fraction(1)})
