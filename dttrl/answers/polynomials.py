r"""Exact arithmetic on sums of generalised monomials, and an exact test for zero.

A term is a rational coefficient times powers of *generators*: variables (which stand for positive numbers),
primes with a fractional exponent (``p2^{1/2}`` is :math:`\sqrt2`), :math:`\pi`, :math:`e`,
:math:`\zeta = e^{i\pi}` with an exponent below one (``z^{1/2}`` is i), logarithms of primes, and numbered
roots, exponentials and function values. Equal sums are mostly equal terms. What is left is a number made of
roots, and for those vanishing is decided by their smallest possible size: an algebraic integer of degree D
whose conjugates are at most u is zero or at least :math:`u^{1-D}` (the product of all conjugates is an
integer), so computing it a little more precisely than that is a proof. Needs mpmath; runs in the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from importlib import import_module
from math import gcd, lcm, log10
from typing import Any, Final

mp: Any = import_module("mpmath").mp

Monomial = frozenset[tuple[str, Fraction]]
Sum = dict[Monomial, Fraction]

ONE: Final[Monomial] = frozenset()
MAX_TERMS: Final = 1_500
MAX_DEGREE: Final = 4_096
MAX_PROOF_DIGITS: Final = 12_000
_SIGN_DIGITS: Final = 60
_VALUES: Final = {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
}
_HALF: Final = Fraction(1, 2)


class UnprovenError(ValueError):
    """No exact statement is possible here: too large, or a function about which nothing is known."""


def constant(value: Fraction | int) -> Sum:
    """Make a sum of one rational term."""
    return {ONE: Fraction(value)} if value else {}


@dataclass
class Generators:
    """The numbered generators of one comparison: roots ``r0``, functions ``c0``, exponentials ``E0``.

    ``roots`` holds (radicand, degree): the radicand has coprime integer coefficients, so that the root of a
    number is an algebraic integer. ``functions`` holds (name, arguments); ``exponents`` the monomial that is
    exponentiated; ``logarithms`` (``L0``) the sum whose logarithm is meant.
    """

    roots: list[tuple[Sum, int]] = field(default_factory=list)
    functions: list[tuple[str, tuple[Sum, ...]]] = field(default_factory=list)
    exponents: list[Monomial] = field(default_factory=list)
    logarithms: list[Sum] = field(default_factory=list)

    # --- arithmetic

    def add(self, a: Sum, b: Sum, factor: int = 1) -> Sum:
        """Return a + factor b."""
        total = dict(a)
        for monomial, c in b.items():
            value = total.get(monomial, Fraction(0)) + factor * c
            if value:
                total[monomial] = value
            else:
                total.pop(monomial, None)
        return total

    def multiply(self, a: Sum, b: Sum) -> Sum:
        """Return a b, with powers of primes, of zeta and of roots reduced."""
        if len(a) * len(b) > 20 * MAX_TERMS:
            raise UnprovenError("too many terms")
        total: Sum = {}
        for m, c in a.items():
            for n, d in b.items():
                total = self._accumulate(total, self._joined(m, n), c * d)
        if len(total) > MAX_TERMS:
            raise UnprovenError("too many terms")
        return total

    def power(self, a: Sum, exponent: int) -> Sum:
        """Return a to a power of at least 0."""
        if exponent > 4_000 or (len(a) > 1 and exponent > 200):
            raise UnprovenError("exponent too large")
        bits = max((max(c.numerator.bit_length(), c.denominator.bit_length()) for c in a.values()), default=0)
        if bits * exponent > 60_000:
            raise UnprovenError("number too large")
        result = constant(1)
        while exponent:
            if exponent & 1:
                result = self.multiply(result, a)
            exponent >>= 1
            if exponent:
                a = self.multiply(a, a)
        return result

    def term(self, powers: Mapping[str, Fraction], coefficient: Fraction) -> Sum:
        """Make one reduced term."""
        return self._accumulate({}, dict(powers), coefficient)

    @staticmethod
    def _joined(m: Monomial, n: Monomial) -> dict[str, Fraction]:
        powers = dict(m)
        for name, exponent in n:
            powers[name] = powers.get(name, Fraction(0)) + exponent
        return powers

    def _accumulate(self, total: Sum, powers: dict[str, Fraction], coefficient: Fraction) -> Sum:
        extra: list[Sum] = []
        for name, exponent in [*powers.items()]:
            whole = exponent.numerator // exponent.denominator
            if name == "z":
                powers[name] = exponent - whole
                coefficient *= (-1) ** (whole % 2)
            elif name[0] == "p" and whole and name != "pi":
                if abs(whole) > 4_000:
                    raise UnprovenError("number too large")
                powers[name] = exponent - whole
                coefficient *= Fraction(int(name[1:])) ** whole
            elif name[0] == "r":
                radicand, degree = self.roots[int(name[1:])]
                turns = whole // degree
                if turns:
                    powers[name] = exponent - turns * degree
                    extra.append(self.power(radicand, turns))
        monomial = frozenset((n, e) for n, e in powers.items() if e)
        if extra:
            product = {monomial: coefficient}
            for factor in extra:
                product = self.multiply(product, factor)
            return self.add(total, product)
        value = total.get(monomial, Fraction(0)) + coefficient
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
        return total

    # --- what a generator is

    def inside(self, name: str) -> Iterable[Sum]:
        """Sums on which a generator depends."""
        if name[0] == "r":
            return (self.roots[int(name[1:])][0],)
        if name[0] == "c":
            return self.functions[int(name[1:])][1]
        if name[0] == "E":
            return ({self.exponents[int(name[1:])]: Fraction(1)},)
        if name[0] == "L":
            return (self.logarithms[int(name[1:])],)
        return ()

    def names(self, a: Sum) -> set[str]:
        """All generators of a sum, those inside of others included."""
        found: set[str] = set()
        todo = {name for monomial in a for name, _ in monomial}
        while todo:
            name = todo.pop()
            found.add(name)
            todo |= {n for s in self.inside(name) for monomial in s for n, _ in monomial} - found
        return found

    def is_number(self, a: Sum) -> bool:
        """Whether no variable occurs."""
        return all(name[0] != "v" for name in self.names(a))

    def is_algebraic(self, name: str) -> bool:
        """Whether a generator is an algebraic number."""
        inner = {name}.union(*(self.names(s) for s in self.inside(name)))
        return all(n == "z" or (n[0] in "pr" and n != "pi") for n in inner)

    def positive_generator(self, name: str) -> bool:
        """Whether a generator is known to be a positive number."""
        if name[0] in "vp" or name == "e":
            return True
        if name[0] == "E":
            return all(n != "z" and n[0] not in "c" for n in self.names(self._single(name)))
        return name[0] in "rl" and self.positive(self._single(name), inner=name)

    @staticmethod
    def _single(name: str) -> Sum:
        return {frozenset({(name, Fraction(1))}): Fraction(1)}

    def positive(self, a: Sum, inner: str = "") -> bool:
        """Whether a sum is known to be positive wherever its variables are."""
        if not a:
            return False
        if self.is_number(a):
            return self.sign(a) > 0
        if inner[:1] == "r":
            return self.positive(self.roots[int(inner[1:])][0])
        generators = {name for monomial in a for name, _ in monomial}
        return all(c > 0 for c in a.values()) and all(self.positive_generator(n) for n in generators)

    def sign(self, a: Sum) -> int:
        """1, -1, or 0 for a number that isn't clearly real and off zero."""
        with mp.workdps(_SIGN_DIGITS):
            try:
                value = self.value(a)
            except UnprovenError:
                return 0
            size = abs(value)
            if size < mp.mpf(10) ** -40 or abs(mp.im(value)) > size * mp.mpf(10) ** -40:
                return 0
            return 1 if mp.re(value) > 0 else -1

    # --- values

    def value(self, a: Sum) -> Any:
        """Value of a sum without variables at the precision that mp is set to."""
        total = mp.mpf(0)
        for monomial, c in a.items():
            product = mp.mpf(c.numerator) / c.denominator
            for name, exponent in monomial:
                product *= self._power_value(name, exponent)
            total += product
        return total

    def _power_value(self, name: str, exponent: Fraction) -> Any:
        e = mp.mpf(exponent.numerator) / exponent.denominator
        if name == "z":
            return mp.expjpi(e)
        if name[0] == "E":
            return mp.exp(e * self.value({self.exponents[int(name[1:])]: Fraction(1)}))
        return mp.power(self.generator_value(name), e)

    def generator_value(self, name: str) -> Any:
        """Value of one generator without variables."""
        if name in ("pi", "e"):
            return +mp.pi if name == "pi" else +mp.e
        if name[0] == "p":
            return mp.mpf(int(name[1:]))
        if name[0] == "l":
            return mp.log(int(name[2:]))
        if name[0] == "r":
            radicand, degree = self.roots[int(name[1:])]
            return mp.power(self.value(radicand), mp.mpf(1) / degree)
        if name[0] == "L":
            return mp.log(self.value(self.logarithms[int(name[1:])]))
        function, arguments = self.functions[int(name[1:])]
        if function not in _VALUES or len(arguments) != 2:
            raise UnprovenError("a function without a known value")
        return getattr(mp, _VALUES[function])(self.value(arguments[0]) / self.value(arguments[1]))

    # --- zero

    def vanishes(self, a: Sum) -> bool:
        """Whether a sum is zero for certain; False means that this is not known."""
        groups: dict[Monomial, Sum] = {}
        for monomial, c in a.items():
            algebraic = frozenset((n, e) for n, e in monomial if self.is_algebraic(n))
            groups.setdefault(monomial - algebraic, {})[algebraic] = c
        return self._logarithmic_zero(a) or all(self._algebraic_zero(group) for group in groups.values())

    def _logarithmic_zero(self, a: Sum) -> bool:
        """Whether a sum of rational multiples of logarithms is the logarithm of 1."""
        scale = reduce(lcm, (c.denominator for c in a.values()), 1)
        sides = [constant(1), constant(1)]
        for monomial, c in a.items():
            (name, exponent), *more = monomial or {("", Fraction(0))}
            if more or exponent != 1 or name[:1] not in ("l", "L") or abs(c * scale) > 100:
                return False
            inner = constant(int(name[2:])) if name[0] == "l" else self.logarithms[int(name[1:])]
            if not self.is_number(inner):
                return False
            sides[c < 0] = self.multiply(sides[c < 0], self.power(inner, int(abs(c * scale))))
        return bool(a) and self.vanishes(self.add(sides[0], sides[1], -1))

    def _algebraic_zero(self, a: Sum) -> bool:
        """Compare a number made of roots with its separation bound."""
        degree = 1
        denominators: dict[str, int] = {}
        roots = [self.roots[int(name[1:])] for name in self.names(a) if name[0] == "r"]
        for _, order in roots:
            degree *= order
        for s in [a, *(radicand for radicand, _ in roots)]:
            for monomial in s:
                for name, exponent in monomial:
                    denominators[name] = lcm(denominators.get(name, 1), exponent.denominator)
        for name, denominator in denominators.items():
            degree *= 2 * denominator if name == "z" else denominator
        scale = reduce(lcm, (c.denominator for c in a.values()), 1)
        size = _log10(Fraction(scale)) + self._log_size(a)
        digits = int((degree - 1) * max(size, 0.1)) + 30
        if degree > MAX_DEGREE or digits > MAX_PROOF_DIGITS:
            raise UnprovenError("the separation bound is too small")
        with mp.workdps(digits + int(size) + 30):
            return bool(abs(self.value(a)) * scale < mp.mpf(10) ** -(digits - 10))

    def _log_size(self, a: Sum) -> float:
        """Decimal logarithm of a bound on all conjugates of a sum of algebraic integers."""
        logs = [
            _log10(abs(c)) + sum(float(e) * self._log_generator(n) for n, e in monomial)
            for monomial, c in a.items()
        ]
        top = max(logs)
        return top + log10(sum(10 ** (x - top) for x in logs)) + 1e-9

    def _log_generator(self, name: str) -> float:
        if name == "z":
            return 0.0
        if name[0] == "p":
            return _log10(Fraction(int(name[1:])))
        radicand, degree = self.roots[int(name[1:])]
        return self._log_size(radicand) / degree


def _log10(value: Fraction) -> float:
    def of(n: int) -> float:
        shift = max(n.bit_length() - 900, 0)
        return log10(n >> shift) + shift * 0.3010299956639812 + (1e-9 if shift else 0)

    return of(value.numerator) - of(value.denominator)


def content(a: Sum) -> Fraction:
    """Positive rational whose quotient has coprime integer coefficients."""
    top = reduce(gcd, (abs(c.numerator) for c in a.values()))
    return Fraction(top, reduce(lcm, (c.denominator for c in a.values())))


def common_powers(a: Sum, names: Iterable[str]) -> dict[str, Fraction]:
    """Smallest exponent of each generator over all terms, where it isn't 0."""
    found = {}
    for name in names:
        least = min(dict(monomial).get(name, Fraction(0)) for monomial in a)
        if least:
            found[name] = least
    return found


def exact_power_root(generators: Generators, a: Sum, degree: int) -> Sum | None:
    """Return a sum whose power is ``a``, by Newton's method on leading terms; None where there is none."""

    def leading(s: Sum) -> Monomial:
        order = sorted({n for m in s for n, _ in m})
        return max(s, key=lambda m: [dict(m).get(n, Fraction(0)) for n in order])

    first = leading(a)
    whole = a[first]
    top = round(abs(whole.numerator) ** (1 / degree)) if whole.numerator.bit_length() < 200 else 0
    if whole < 0 or whole.denominator != 1 or top**degree != whole.numerator:
        return None
    if any(n == "z" or not generators.positive_generator(n) for m in a for n, _ in m):
        return None
    root: Sum = {frozenset((n, e / degree) for n, e in first): Fraction(top)}
    slope = generators.power(root, degree - 1)
    slope_monomial, slope_c = next(iter(slope.items()))
    for _ in range(len(a) + 1):
        rest = generators.add(a, generators.power(root, degree), -1)
        if not rest:
            return root
        head = leading(rest)
        powers = dict(head)
        for name, exponent in slope_monomial:
            powers[name] = powers.get(name, Fraction(0)) - exponent
        if any(e < 0 for e in powers.values()):
            return None
        root = generators.add(root, generators.term(powers, rest[head] / (degree * slope_c)))
    return None
