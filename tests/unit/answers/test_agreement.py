"""Agreement to 200 digits: what is equal, what is not, what is too much, and that luck decides nothing."""

from __future__ import annotations

import random
import time
from fractions import Fraction

import pytest

from dttrl.answers.agreement import Agreement
from dttrl.answers.equivalence import Verdict
from dttrl.answers.exact import Node, UnreadableError, make, number, symbol
from dttrl.answers.expressions import parse_expression
from dttrl.answers.normalization import normalize
from dttrl.answers.reading import read

YES, NO, UNKNOWN = Verdict.YES, Verdict.NO, Verdict.UNKNOWN


def reading(text: str) -> Node:
    node = read(normalize(text))[0]
    return parse_expression([node.name]) if node.op == "word" else node


def equation(text: str) -> Node:
    left, right = text.split("=")
    return Node("equation", (make("add", reading(left), make("neg", reading(right))),))


def verdict(a: Node, b: Node) -> Verdict | None:
    """The verdict in both directions, which must be the same."""
    found = Agreement().leaf(a, b)
    assert Agreement().leaf(b, a) is found
    return found


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\sqrt{1/n}", r"1/\sqrt{n}"),
        (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
        (r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}", "1"),
        (r"\sqrt[3]{\sqrt[3]{2}-1}", r"\sqrt[3]{1/9}-\sqrt[3]{2/9}+\sqrt[3]{4/9}"),
        (r"\cos\frac{2\pi}{7}\cos\frac{4\pi}{7}\cos\frac{6\pi}{7}", r"\frac18"),
        (r"\sin 10^\circ \sin 50^\circ \sin 70^\circ", r"\frac18"),
        (r"\pi\cos 36^\circ", r"\frac{\pi+\pi\sqrt5}{4}"),
        (r"e^{2\pi i/3}", r"\frac{-1+i\sqrt3}{2}"),
        (r"\sin(x+y)", r"\sin x\cos y+\cos x\sin y"),
        (r"\frac{\sin 3x}{\sin x}", r"3-4\sin^2 x"),
        ("4^n", "2^{2n}"),
        ("(n+2)!", "(n+2)(n+1)n!"),
        (r"\binom{n}{2}", "n(n-1)/2"),
        (r"\log_2 3\cdot\log_3 8", "3"),
        (r"\arctan\sqrt3", r"\frac{\pi}{3}"),
        (r"|\pi-4|", r"4-\pi"),
        (r"\lfloor 10\pi\rfloor", "31"),
        (r"|x-3|", "|3-x|"),
        (r"\max(a,b)", r"\frac{a+b+|a-b|}{2}"),
        ("(-1)^{n+1}", "-(-1)^n"),
        (r"\frac{1}{\sqrt{x+1}+1}", r"\frac{\sqrt{x+1}-1}{x}"),
        (r"\log_2(2^{1000000})", "1000000"),
        ("(x+y)^{200}", "(y+x)^{200}"),
        # what is only noise is zero, whole or real, and chooses no branch
        (r"\sqrt2\sqrt2-2", "0"),
        (r"\sqrt{\sqrt2\sqrt2-2}", "0"),
        (r"\lfloor\sqrt2\sqrt2\rfloor", "2"),
        (r"\sqrt{e^{i\pi}}", "i"),
        (r"x\cos\frac{\pi}{2}", "0"),
        # terms that are far apart
        (r"\sin(10^{300}\pi)", "0"),
        (r"(10^{300}\pi+1)-10^{300}\pi", "1"),
        (r"\frac{1}{10^{300}+\pi-10^{300}}", r"\frac{1}{\pi}"),
        (r"\pi\cdot10^{2400}", r"10^{2400}\pi"),
        (r"\cosh^2(1000)-\sinh^2(1000)", "1"),
    ],
)
def test_equal(a: str, b: str) -> None:
    assert verdict(reading(a), reading(b)) is YES


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # nearly equal: 16, 30 and 60 digits, and more than 200 where the terms say so
        (r"\sqrt{2}", "1.4142135623730950"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"),
        (r"\sqrt{10^{60}+1}", "10^{30}"),
        (r"\sqrt{2}+10^{-200}", r"\sqrt2"),
        (r"\sqrt{2}+10^{-250}", r"\sqrt2"),
        (r"\sqrt{10^{100}+1}-\sqrt{10^{100}}", "0"),
        (r"\sqrt{1+10^{-400}}", "1"),
        (r"\ln(1+10^{-400})", "0"),
        (r"\cos(10^{-300})", "1"),
        (r"\pi^{10^{-400}}", "1"),
        (r"e^{-1000}+1", "1"),
        (r"\arctan(10^{400})", r"\frac{\pi}{2}"),
        (r"\tanh(1000)", "1"),
        (r"\frac{\cosh(1000)}{e^{1000}}", r"\frac12"),
        (r"(\sqrt2+\pi\cdot10^{-100})^2", r"2+2\sqrt2\cdot\pi\cdot10^{-100}"),
        (r"10^{300}+\pi", "10^{300}+e"),
        (r"\lfloor\sqrt2\sqrt2-10^{-250}\rfloor", "2"),
        # equal at some points only
        (r"\sqrt{x^2}", "x"),
        (r"\sqrt{ab^2}", r"b\sqrt a"),
        (r"\sqrt{x^2+2x+1}", "x+1"),
        ("|x-4|", "4-x"),
        ("|x-10^5|", "10^5-x"),
        (r"\sqrt{(x-4)^2}", "4-x"),
        (r"\max(x,4)", "4"),
        (r"|\sin|y||", r"\sin|y|"),
        (r"|\ln(x^2)|", r"\ln(x^2)"),
        (r"\max(\frac{1}{1-3y},1)", "1"),
        (r"\sin x", "x"),
        (r"\sqrt{x^2+1}", "x+1"),
        (r"\sqrt{x+y}", r"\sqrt x+\sqrt y"),
        (r"\arctan 2", r"\frac{\pi}{3}"),
        ("2^n", "n^2"),
    ],
)
def test_not_equal(a: str, b: str) -> None:
    assert verdict(reading(a), reading(b)) is NO


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\frac{x}{\sqrt2\sqrt2-2}", "x"),
        (r"\frac{x}{\sqrt2\sqrt2-2}", r"\frac{-x}{2-\sqrt2\sqrt2}"),
        (r"\frac{1}{\ln(\cos 2\pi)}", "x"),
        (r"\tan\frac{\pi}{2}", r"\frac{1}{\cos\frac{\pi}{2}}"),
        (r"\lfloor x\rfloor", r"\lceil x\rceil-1"),
        (r"\lfloor x\rfloor", "x"),
        (r"x+10^{-2000}\sin x", r"10^{-2000}\sin x+x+10^{-3000}"),
    ],
)
def test_what_cannot_be_evaluated_is_unknown(a: str, b: str) -> None:
    assert verdict(reading(a), reading(b)) is UNKNOWN


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("(10^9)!", "(10^9)!+1"),
        ("9^{9^{9^9}}+x", "9^{9^{9^9}}+y"),
        ("(3000!)^2+1", "(3000!)^2"),
        (r"(99999.5)!+x", r"(99999.5)!+y"),
        ("x^{" * 25 + "x" + "}" * 25, "e^{" * 25 + "x" + "}" * 25),
        (r"\tan(" * 30 + "x!" + ")" * 30, r"\tan(" * 30 + "10^{200}x!" + ")" * 30),
        ("10^{2400}+" + "+".join(rf"\sin({k}x)" for k in range(1, 35)), "10^{2400}+x"),
        ("10^{2400}+" + "+".join(rf"\arctan({k}x)" for k in range(1, 25)), "10^{2400}+x"),
        (r"(10^{-1000}x)!+(10^{-1000}y)!", "2"),
    ],
)
def test_what_is_too_much_ends_soon_and_is_unknown(a: str, b: str) -> None:
    begin = time.process_time()
    assert verdict(reading(a), reading(b)) is UNKNOWN
    assert time.process_time() - begin < 8.0  # twice, and with room for a slow machine


def test_a_verdict_does_not_depend_on_what_was_asked_before() -> None:
    """Known values are charged as new ones are; each Agreement has the same to spend."""
    pairs = [(rf"\sqrt{{{k}}}^x+y", rf"y+{k}^{{x/2}}") for k in range(2, 12)]
    costly = "+".join(rf"\sin({k}x)" for k in range(1, 24)) + "+10^{900}"
    pairs.append((costly, f"0.5({costly})+0.5({costly})"))
    forward = [verdict(reading(a), reading(b)) for a, b in pairs]
    backward = [verdict(reading(a), reading(b)) for a, b in reversed(pairs)]
    assert forward == backward[::-1]
    one = Agreement()
    spent = [one.leaf(reading(costly), reading(f"x-x+{costly}")) for _ in range(40)]
    assert spent[-1] is UNKNOWN


def test_proportional_equations() -> None:
    for a, b in (
        ("2x+4y=3", "y=3/4-x/2"),
        (r"\sqrt2 x=2", r"x=\sqrt2"),
        (r"\frac{x^2}{4}+\frac{y^2}{9}=1", "9x^2+4y^2=36"),
    ):
        assert verdict(equation(a), equation(b)) is YES
    for a, b in (
        ("x+y=1", "x+y=2"),
        ("x^2=x", "x=1"),
        ("x=1", "z=1"),
        ("|x|=2", "x=2"),
        ("|x-4|=y", "4-x=y"),
    ):
        assert verdict(equation(a), equation(b)) is NO
    for a, b in (
        (r"\lfloor x\rfloor=y", r"\lceil x\rceil-1=y"),
        ("10^{300}x=1", "10^{300}x=2"),
        (r"\pi=3", r"2\pi=6"),
    ):
        assert verdict(equation(a), equation(b)) is UNKNOWN


# Without i and tan: the real root of a negative number is one at real and another at complex values.
def _tree(rnd: random.Random, depth: int, names: list[str]) -> Node:
    if depth == 0:
        choice = rnd.random()
        if names and choice < 0.4:
            return symbol(rnd.choice(names))
        if choice < 0.5:
            return symbol(rnd.choice(["pi", "e"]))
        return number(Fraction(rnd.randint(-6, 12), rnd.choice([1, 1, 2, 3])))

    def deeper() -> Node:
        return _tree(rnd, depth - 1, names)

    op = rnd.choice(["add", "add", "mul", "div", "pow", "neg", "call"])
    if op == "pow":
        power = rnd.choice([Fraction(1, 2), Fraction(1, 3), Fraction(2), Fraction(-1), Fraction(3, 2)])
        return make("pow", deeper(), number(power))
    if op == "neg":
        return make("neg", deeper())
    if op == "call":
        return make("call", deeper(), name=rnd.choice(["sin", "cos", "ln", "exp"]))
    return make(op, deeper(), deeper())


def test_random_expressions_equal_their_rewritings_and_nothing_else() -> None:
    """250 expressions e: 3e - 2e and (e/7) 7 are e; e + 10^-150, and e times that much more, are not."""
    rnd = random.Random(5)
    seven, small = number(7), number(Fraction(1, 10**150))
    decided = 0
    for _ in range(250):
        try:
            e = _tree(rnd, rnd.choice([1, 2, 3]), rnd.choice([[], ["x"], ["x", "y"]]))
            thrice = make("add", make("mul", e, number(3)), make("mul", e, number(-2)))
            same = [thrice, make("mul", make("div", e, seven), seven)]
            other = [make("add", e, small), make("mul", e, make("add", number(1), small))]
        except UnreadableError:
            continue
        first = verdict(e, same[0])
        assert first is not NO
        if first is UNKNOWN:  # no value, or too few
            assert all(verdict(e, b) is not YES for b in other)
            continue
        decided += 1
        assert verdict(e, same[1]) is YES
        assert verdict(e, other[0]) is NO
        zero = verdict(e, number(0)) is YES
        assert verdict(e, other[1]) is (YES if zero else NO)
    assert decided > 160
