r"""Readings as quotients of sums: the rules of algebra, of powers, roots, exponentials and logarithms.

Roots are taken apart into the roots of primes and of variables; what can't be taken apart becomes a numbered
generator, shared by all equal ones. ``z`` is :math:`e^{i\pi}`; every rule holds for positive variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from dttrl.answers.polynomials import (
    ONE,
    Generators,
    Monomial,
    Sum,
    UnprovenError,
    common_powers,
    constant,
    content,
    exact_power_root,
)

_HALF: Final = Fraction(1, 2)
IMAGINARY: Final[Monomial] = frozenset({("z", _HALF)})
_LARGEST_FACTOR: Final = 20_000


@dataclass(frozen=True)
class Quotient:
    """A sum over a sum; the lower one is not zero."""

    top: Sum
    bottom: Sum


def whole(s: Sum) -> Quotient:
    """Make a quotient of a sum over one."""
    return Quotient(s, constant(1))


def _factors(n: int) -> dict[int, int]:
    """Prime factors up to a limit; what is left counts as one, if need be as a power."""
    found: dict[int, int] = {}
    p = 2
    while p <= _LARGEST_FACTOR and p * p <= n:
        while n % p == 0:
            found[p] = found.get(p, 0) + 1
            n //= p
        p += 1 if p == 2 else 2
    if n > 1:
        for degree in (6, 5, 4, 3, 2):
            root = round(n ** (1 / degree)) if n.bit_length() < 1000 else 0
            if root > 1 and root**degree == n:
                found[root] = found.get(root, 0) + degree
                return found
        found[n] = found.get(n, 0) + 1
    return found


class Rewriter:
    """The quotients of one comparison; they share their generators."""

    def __init__(self) -> None:
        self.generators = Generators()

    def equal(self, a: Quotient, b: Quotient) -> bool:
        """Whether the difference vanishes for certain."""
        g = self.generators
        return g.vanishes(g.add(g.multiply(a.top, b.bottom), g.multiply(b.top, a.bottom), -1))

    # --- quotients

    def plus(self, a: Quotient, b: Quotient) -> Quotient:
        """Return the sum."""
        g = self.generators
        if a.bottom == b.bottom:
            return Quotient(g.add(a.top, b.top), a.bottom)
        return Quotient(
            g.add(g.multiply(a.top, b.bottom), g.multiply(b.top, a.bottom)), g.multiply(a.bottom, b.bottom)
        )

    def times(self, a: Quotient, b: Quotient) -> Quotient:
        """Return the product."""
        g = self.generators
        return self.simpler(Quotient(g.multiply(a.top, b.top), g.multiply(a.bottom, b.bottom)))

    def inverse(self, a: Quotient) -> Quotient:
        """Return one over a; raises where a vanishes."""
        if self.generators.vanishes(a.top):
            raise UnprovenError("a division by zero")
        return self.simpler(Quotient(a.bottom, a.top))

    def simpler(self, q: Quotient) -> Quotient:
        """Move a lower sum of one term to the top."""
        if len(q.bottom) != 1 or q.bottom == constant(1):
            return q
        monomial, c = next(iter(q.bottom.items()))
        if any(name[0] in "rc" for name, _ in monomial):
            return q
        inverse = self.generators.term({name: -e for name, e in monomial}, 1 / c)
        return whole(self.generators.multiply(q.top, inverse))

    def conjugate(self, q: Quotient) -> Quotient:
        """Complex conjugate; variables are real."""
        return Quotient(self._conjugate_sum(q.top), self._conjugate_sum(q.bottom))

    def _conjugate_sum(self, s: Sum) -> Sum:
        g = self.generators
        total: Sum = {}
        for monomial, c in s.items():
            powers = dict(monomial)
            if "z" in powers:
                powers["z"] = -powers["z"]
            for name in powers:
                inner = set().union(*(g.names(t) for t in g.inside(name)))
                if "z" in inner or (name[0] == "r" and not g.positive_generator(name)):
                    raise UnprovenError("conjugate of a complex function")
            total = g.add(total, g.term(powers, c))
        return total

    # --- powers and roots

    def integer_power(self, q: Quotient, times: int) -> Quotient:
        """Return a power of any sign."""
        g = self.generators
        if times < 0:
            q, times = self.inverse(q), -times
        return self.simpler(Quotient(g.power(q.top, times), g.power(q.bottom, times)))

    def root(self, q: Quotient, degree: int) -> Quotient:
        """Principal root, but the real root of a negative number for odd degrees."""
        g = self.generators
        if degree > 64:
            raise UnprovenError("a root of high degree")
        if g.vanishes(q.top):
            return whole({})
        if q.bottom == constant(1):
            return whole(self.sum_root(q.top, degree))
        if not g.positive(q.bottom):
            negative = g.multiply(q.bottom, constant(-1))
            if g.positive(negative):
                q = Quotient(g.multiply(q.top, constant(-1)), negative)
            elif degree == 2 and "z" not in g.names(q.bottom):
                square = g.multiply(q.bottom, q.bottom)
                return self.times(
                    whole(self.sum_root(g.multiply(q.top, q.bottom), 2)),
                    self.inverse(whole(self.sum_root(square, 2))),
                )
            else:
                raise UnprovenError("a root of a quotient of unknown sign")
        top, bottom = self.sum_root(q.top, degree), self.sum_root(q.bottom, degree)
        return self.simpler(Quotient(top, bottom))

    def sum_root(self, s: Sum, degree: int) -> Sum:
        """Root of a sum: its content and its positive common factors, its sign, and what is left."""
        g = self.generators
        scale = content(s)
        names = {name for monomial in s for name, _ in monomial}
        powers = common_powers(s, [n for n in names if n != "z" and g.positive_generator(n)])
        inverse = g.term({name: -e for name, e in powers.items() if name[0] != "r"}, 1 / scale)
        powers = {name: e for name, e in powers.items() if name[0] != "r"}
        rest = g.multiply(s, inverse)
        roots = g.term({name: e / degree for name, e in powers.items()}, Fraction(1))
        result = g.multiply(self.number_root(scale, degree), roots)
        turn = Fraction(0)
        if len(rest) == 1 and set(dict(next(iter(rest)))) <= {"z"}:
            monomial, c = next(iter(rest.items()))
            turn = dict(monomial).get("z", Fraction(0)) + (c < 0)
            turn = turn - 2 if turn > 1 else turn
            rest = constant(1)
        elif g.positive(g.multiply(rest, constant(-1))):
            rest, turn = g.multiply(rest, constant(-1)), Fraction(1)
        if turn:
            straight = turn == 1 and degree % 2
            result = g.multiply(result, g.term({"z": turn if straight else turn / degree}, Fraction(1)))
        if rest == constant(1):
            return result
        return g.multiply(result, self.opaque_root(rest, degree))

    def opaque_root(self, s: Sum, degree: int) -> Sum:
        """Return an exact root, or the generator of this radicand."""
        g = self.generators
        exact = exact_power_root(g, s, degree)
        if exact is not None:
            opposite = g.multiply(exact, constant(-1))
            if degree % 2 or g.positive(exact):
                return exact
            if g.positive(opposite):
                return opposite
        for index, (radicand, known_degree) in enumerate(g.roots):
            if known_degree == degree and g.vanishes(g.add(radicand, s, -1)):
                return {frozenset({(f"r{index}", Fraction(1))}): Fraction(1)}
        g.roots.append((s, degree))
        return {frozenset({(f"r{len(g.roots) - 1}", Fraction(1))}): Fraction(1)}

    def number_root(self, value: Fraction, degree: int) -> Sum:
        """Root of a positive rational number: roots of primes."""
        powers = {f"p{p}": Fraction(e, degree) for p, e in _factors(value.numerator).items()}
        for p, e in _factors(value.denominator).items():
            powers[f"p{p}"] = Fraction(-e, degree)
        return self.generators.term(powers, Fraction(1))

    # --- exponentials and logarithms

    def exponential(self, q: Quotient, factor: Sum | None = None) -> Quotient:
        """Exponential of a sum (times ``factor``): a product over its terms."""
        g = self.generators
        if q.bottom != constant(1):
            raise UnprovenError("an exponential of a quotient")
        result: Sum = constant(1)
        for monomial, c in (g.multiply(q.top, factor) if factor else q.top).items():
            result = g.multiply(result, self._exponential_of(monomial, c))
        return whole(result)

    def _exponential_of(self, monomial: Monomial, c: Fraction) -> Sum:
        g = self.generators
        if monomial == ONE:
            return g.term({"e": c}, Fraction(1))
        if monomial == frozenset({("z", _HALF), ("pi", Fraction(1))}):
            return g.term({"z": c}, Fraction(1))
        (name, exponent), *more = monomial
        if not more and exponent == 1 and name[0] == "l":
            return g.term({name[1:]: c}, Fraction(1))
        if not more and exponent == 1 and name[0] == "L":
            return self.integer_power(
                self.root(whole(g.logarithms[int(name[1:])]), c.denominator), c.numerator
            ).top
        if monomial not in g.exponents:
            g.exponents.append(monomial)
        return g.term({f"E{g.exponents.index(monomial)}": c}, Fraction(1))

    def logarithm(self, q: Quotient) -> Quotient:
        """Principal natural logarithm of something whose sign is known."""
        g = self.generators
        top, turn = q.top, Sum()
        if g.positive(g.multiply(top, constant(-1))):
            top, turn = (
                g.multiply(top, constant(-1)),
                {frozenset({("z", _HALF), ("pi", Fraction(1))}): Fraction(1)},
            )
        if not g.positive(top) or not g.positive(q.bottom):
            raise UnprovenError("a logarithm of something that may be negative")
        return whole(g.add(turn, g.add(self.sum_logarithm(top), self.sum_logarithm(q.bottom), -1)))

    def sum_logarithm(self, s: Sum) -> Sum:
        """Logarithm of a positive sum: of its content, its common factors, and what is left."""
        g = self.generators
        scale = content(s)
        names = {name for monomial in s for name, _ in monomial}
        powers = common_powers(s, [name for name in names if g.positive_generator(name)])
        roots = {name: e for name, e in powers.items() if name[0] == "r"}
        rest = g.multiply(s, g.term({n: -e for n, e in powers.items() if n not in roots}, 1 / scale))
        if rest == {frozenset(roots.items()): Fraction(1)}:  # nothing but roots
            rest = constant(1)
        else:
            powers = {name: e for name, e in powers.items() if name not in roots}
        total: Sum = {}
        for value, sign in ((scale.numerator, 1), (scale.denominator, -1)):
            for p, e in _factors(value).items():
                total = g.add(total, {frozenset({(f"lp{p}", Fraction(1))}): Fraction(sign * e)})
        for name, exponent in powers.items():
            single = self._generator_logarithm(name)
            total = g.add(total, {m: c * exponent for m, c in single.items()})
        return total if rest == constant(1) else g.add(total, self.opaque_logarithm(rest))

    def _generator_logarithm(self, name: str) -> Sum:
        g = self.generators
        if name == "e":
            return constant(1)
        if name[0] == "p" and name != "pi":
            return {frozenset({(f"l{name}", Fraction(1))}): Fraction(1)}
        if name[0] == "E":
            return {g.exponents[int(name[1:])]: Fraction(1)}
        if name[0] == "r":
            radicand, degree = g.roots[int(name[1:])]
            return {m: c / degree for m, c in self.sum_logarithm(radicand).items()}
        return self.opaque_logarithm({frozenset({(name, Fraction(1))}): Fraction(1)})

    def opaque_logarithm(self, s: Sum) -> Sum:
        """Return the generator of this logarithm."""
        g = self.generators
        for index, known in enumerate(g.logarithms):
            if g.vanishes(g.add(known, s, -1)):
                return {frozenset({(f"L{index}", Fraction(1))}): Fraction(1)}
        g.logarithms.append(s)
        return {frozenset({(f"L{len(g.logarithms) - 1}", Fraction(1))}): Fraction(1)}
