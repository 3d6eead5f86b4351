"""The quick look at values: it only ever says that two expressions differ, and then they do."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from dttrl.answers.bounds import clearly_apart
from dttrl.answers.exact import Node, UnreadableError, make, number, symbol
from dttrl.answers.normalization import normalize
from dttrl.answers.reading import read


def reading(text: str) -> Node:
    return read(normalize(text))[0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\sqrt8", r"3\sqrt2"),
        (r"\pi", "3.14159"),
        ("x^2+1", "x^2-1"),
        (r"\sin x+1", r"\cos x+1"),
        ("2^n+1", "n^2+1"),
        (r"\ln 2+1", r"\ln 3+1"),
    ],
)
def test_apart(a: str, b: str) -> None:
    assert clearly_apart(reading(a), reading(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (r"\sqrt8", r"2\sqrt2"),
        (r"\sqrt2", "1.4142135623730951"),
        (r"10^{300}\pi", "10^{301}"),  # too large to look at
        (r"\sqrt{-2}", r"\sqrt{-3}"),  # complex
        (r"\frac{1}{\sqrt2\sqrt2-2}", "5"),  # a division by almost nothing
        (r"\sqrt{\sqrt2\sqrt2-2}", "0.00001"),
        (r"\lfloor x\rfloor", "7"),
        (r"\log 2", "7"),
        ("x!", "7"),
        (r"\tan\frac{\pi}{2}", "1"),
    ],
)
def test_nothing_is_said(a: str, b: str) -> None:
    assert not clearly_apart(reading(a), reading(b))


def test_equal_expressions_are_never_apart() -> None:
    rnd = random.Random(3)

    def tree(depth: int) -> Node:
        if depth == 0:
            leaf = symbol(rnd.choice("xyz")) if rnd.random() < 0.4 else symbol(rnd.choice(["pi", "e"]))
            return leaf if rnd.random() < 0.6 else number(Fraction(rnd.randint(-9, 9), rnd.randint(1, 9)))
        op = rnd.choice(["add", "mul", "div", "pow", "call"])
        if op == "call":
            return make("call", tree(depth - 1), name=rnd.choice(["sin", "cos", "tan", "ln", "exp", "cot"]))
        return make(op, tree(depth - 1), tree(depth - 1))

    compared = 0
    for _ in range(3_000):
        try:
            a, b, c = tree(rnd.randint(1, 3)), tree(1), tree(1)
            left = make("mul", a, make("add", b, c))
            right = make("add", make("mul", c, a), make("mul", a, b))
        except UnreadableError:
            continue
        compared += 1
        assert not clearly_apart(left, right)
    assert compared > 2_000
