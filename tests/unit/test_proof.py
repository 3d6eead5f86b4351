"""Exact proofs of equality: what is proved, what is not, and that nothing false is."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from dttrl.answers.exact import Node, UnreadableError, make, number, symbol
from dttrl.answers.expressions import parse_expression
from dttrl.answers.normalization import normalize
from dttrl.answers.numeric import _close, _point
from dttrl.answers.polynomials import Generators, UnprovenError, constant
from dttrl.answers.proof import proves_equal
from dttrl.answers.reading import read
from dttrl.answers.rewriting import Rewriter


def reading(text: str) -> Node:
    node = read(normalize(text))[0]
    return parse_expression([node.name]) if node.op == "word" else node


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
        (r"\sqrt{x^2+2x+1}", "x+1"),
        ("(-1)^{n+1}", "-(-1)^n"),
        (r"\frac{1}{\sqrt{x+1}+1}", r"\frac{\sqrt{x+1}-1}{x}"),
        (r"\log_2(2^{1000000})", "1000000"),
    ],
)
def test_proved(a: str, b: str) -> None:
    assert proves_equal(reading(a), reading(b))
    assert proves_equal(reading(b), reading(a))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # nearly equal: 16, 30 and 60 digits
        (r"\sqrt{2}", "1.4142135623730950"),
        (r"e^{\pi\sqrt{163}}", "262537412640768744"),
        (r"\sqrt{10^{60}+1}", "10^{30}"),
        (r"\sqrt{2}+10^{-200}", r"\sqrt2"),
        (r"\sqrt{10^{100}+1}-\sqrt{10^{100}}", "0"),
        (r"\sin x", "x"),
        (r"\sqrt{x^2+1}", "x+1"),
        (r"\sqrt{x+y}", r"\sqrt x+\sqrt y"),
        (r"\arctan 2", r"\frac{\pi}{3}"),
        ("x/0.0000001", "x"),
        (r"\frac{x}{\sqrt2\sqrt2-2}", "x"),
        ("2^n", "n^2"),
        (r"\lfloor x\rfloor", "x"),
        ("(10^9)!", "(10^9)!+1"),
        ("9^{9^{9^9}}+x", "9^{9^{9^9}}+y"),
    ],
)
def test_not_proved(a: str, b: str) -> None:
    assert not proves_equal(reading(a), reading(b))
    assert not proves_equal(reading(b), reading(a))


def test_proportional_equations() -> None:
    def equation(text: str) -> Node:
        left, right = text.split("=")
        return Node("equation", (make("add", reading(left), make("neg", reading(right))),))

    assert proves_equal(equation("2x+4y=3"), equation("y=3/4-x/2"))
    assert proves_equal(equation(r"\sqrt2 x=2"), equation(r"x=\sqrt2"))
    assert proves_equal(equation(r"\frac{x^2}{4}+\frac{y^2}{9}=1"), equation("9x^2+4y^2=36"))
    assert not proves_equal(equation("x+y=1"), equation("x+y=2"))
    assert not proves_equal(equation("x^2=x"), equation("x=1"))
    assert not proves_equal(equation("x=1"), equation("z=1"))


def test_the_separation_bound_tells_zero_from_small() -> None:
    rewriter = Rewriter()
    g = rewriter.generators
    root2, root3 = rewriter.sum_root(constant(2), 2), rewriter.sum_root(constant(3), 2)
    nested = rewriter.sum_root(g.add(constant(5), g.multiply(constant(2), g.multiply(root2, root3))), 2)
    zero = g.add(nested, g.add(root2, root3), -1)
    assert zero
    assert g.vanishes(zero)
    assert not g.vanishes(g.add(zero, constant(Fraction(1, 10**80))))
    assert not g.vanishes(g.add(root2, constant(Fraction(14142135623730951, 10**16)), -1))


def test_what_is_too_large_is_not_proved() -> None:
    g = Generators()
    with pytest.raises(UnprovenError):
        g.power(constant(3), 10**6)
    with pytest.raises(UnprovenError):
        Rewriter().sum_root(constant(2), 10) and g.power(
            g.add(constant(1), g.term({"vx": Fraction(1)}, Fraction(1))), 10**4
        )


# Without i and tan: where a value is exactly zero or real, the noise of the digits would choose another root.
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


def _changed(rnd: random.Random, node: Node) -> Node:
    """Return a rewriting that keeps the value at positive points, or changes a number in it."""
    choice = rnd.random()
    if choice < 0.3 and node.op in ("add", "mul"):
        return make(node.op, node.args[1], node.args[0])
    if choice < 0.45:
        return make("pow", make("pow", node, number(2)), number(Fraction(1, 2)))
    if choice < 0.6:
        return make("pow", make("pow", node, number(Fraction(1, 2))), number(2))
    if choice < 0.7:
        return make("add", node, number(Fraction(1, 10**12)))
    if node.args:
        place = rnd.randrange(len(node.args))
        args = [_changed(rnd, a) if i == place else a for i, a in enumerate(node.args)]
        return make(node.op, *args, name=node.name)
    return make("add", make("mul", node, number(3)), make("mul", node, number(-2)))


def test_no_proof_contradicts_the_numbers() -> None:
    """1,200 random expressions and rewritings of them: what is proved agrees to 200 digits."""
    rnd = random.Random(5)
    proved = contradicted = 0
    for _ in range(1_200):
        names = rnd.choice([[], ["x"], ["x", "y"]])
        try:
            a = _tree(rnd, rnd.choice([1, 2, 3]), names)
            b = _changed(rnd, a)
        except UnreadableError:
            continue
        if not proves_equal(a, b):
            continue
        proved += 1
        for index in range(2):
            try:
                contradicted += not _close(a, b, _point(names, index, True))
            except (ValueError, OverflowError):
                continue
    assert proved > 300
    assert contradicted == 0
