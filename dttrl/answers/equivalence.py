r"""Whether two answers are the same, decided exactly and without an algebra system.

An answer is normalised, read completely (:mod:`dttrl.answers.reading`) and compared by structure: numbers
as exact fractions, lists and sets without order, tuples and intervals with it and with their brackets,
equations, matrices, text. What needs high precision or algebra is left to a worker process. Conventions:

1. an exact value differs from its rounded decimal; an empty answer equals nothing, itself included;
2. units, degrees, currency, percent and ``x=`` on one side only are ignored; two different units differ;
3. ``(1,2)`` differs from ``[1,2]`` and from ``1,2``; ``\{1,2\}`` is ``1,2``; ``0<x<2`` is ``(0,2)``;
4. a broken answer equals only an answer of the same spelling.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from dttrl.answers.bounds import clearly_apart
from dttrl.answers.exact import INFINITY, Node, UnreadableError, make
from dttrl.answers.expressions import parse_expression
from dttrl.answers.normalization import MAX_LENGTH
from dttrl.answers.reading import read


class Verdict(enum.Enum):
    """Whether two answers are equal; UNKNOWN counts as unequal wherever a decision is needed."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


Leaf = Callable[[Node, Node], "Verdict | None"]
"""Decides two scalar expressions, or two equations given as differences; None: can't say."""

_PLAIN: Final = re.compile(r"-?\d{1,40}", re.ASCII)


def exact_equal_normalized(first: str, second: str) -> Verdict | None:
    r"""Compare two normalised answers without algebra.

    YES or NO where exact arithmetic and structure decide, UNKNOWN where nothing can (an answer too long to
    read), None where an algebra system may help.

    >>> exact_equal_normalized(r"\frac{1}{2}", "0.5"), exact_equal_normalized(r"\sqrt{8}", r"2\sqrt{2}")
    (<Verdict.YES: 'yes'>, None)
    """
    if not first or not second:
        return Verdict.NO
    if first == second:
        return Verdict.YES
    if _PLAIN.fullmatch(first) and _PLAIN.fullmatch(second):
        return Verdict.NO
    if max(len(first), len(second)) > MAX_LENGTH:
        return Verdict.NO if first.isalnum() or second.isalnum() else Verdict.UNKNOWN
    return compare(first, second, exact_leaf)


def compare(first: str, second: str, leaf: Leaf) -> Verdict | None:
    """Compare two normalised answers, leaving scalar expressions to ``leaf``."""
    (node_a, unit_a), (node_b, unit_b) = read(first), read(second)
    if unit_a and unit_b and unit_a != unit_b:
        return Verdict.NO
    return _compare(node_a, node_b, leaf)


def plain_number(normalized: str) -> Fraction | None:
    """Return the value of an answer that is one bare rational number, without unit or ``x=``, else None."""
    if _PLAIN.fullmatch(normalized):
        return Fraction(int(normalized))
    if len(normalized) > MAX_LENGTH or not any(c.isdigit() for c in normalized):
        return None
    node, unit = read(normalized)
    return node.value if node.op == "num" and not unit else None


def exact_leaf(a: Node, b: Node) -> Verdict | None:
    """Exact numbers, infinities, equal trees and values that are far apart; None for everything else."""
    if a == b:
        return Verdict.YES
    if {a.op, b.op} <= {"num", "sym"} or _infinite(a) or _infinite(b):
        return Verdict.NO
    return Verdict.NO if clearly_apart(a, b) else None


def _infinite(node: Node) -> bool:
    return node == INFINITY or (node.op == "neg" and node.args[0] == INFINITY)


def _compare(a: Node, b: Node, leaf: Leaf) -> Verdict | None:
    if a == b:
        return Verdict.YES
    if "broken" in (a.op, b.op):
        return Verdict.NO
    if a.op in ("rel", "label") or b.op in ("rel", "label"):
        return _compare_relations(a, b, leaf)
    if _is_assignment(a) != _is_assignment(b):
        a, b = (a, b) if _is_assignment(a) else (b, a)
        return _compare_assignment(a, b, leaf)
    if "list" in (a.op, b.op):
        return _unordered(_members(a), _members(b), leaf)
    if a.op == b.op == "word":  # of single letters, only those of choices may differ in case
        free = len(a.name) > 1 or a.name.upper() in "ABCDEFGHIJ"
        return _same(free and a.name.casefold() == b.name.casefold())
    if {a.op, b.op} == {"word", "num"}:
        return Verdict.NO
    # A lone letter run, a word against words, is a variable or a product against expressions.
    a, b = (parse_expression([node.name]) if node.op == "word" else node for node in (a, b))
    if a.op == b.op == "text":
        return _same(a.name.casefold() == b.name.casefold())
    if a.op == b.op == "union":
        return _unordered(a.args, b.args, leaf)
    if a.op == b.op and a.op in ("group", "matrix", "row"):
        if a.name != b.name or len(a.args) != len(b.args):
            return Verdict.NO
        return _all([_compare(x, y, leaf) for x, y in zip(a.args, b.args, strict=True)])
    structures = {"group", "matrix", "row", "union", "text", "base"}
    if a.op in structures or b.op in structures:
        return None if "opaque" in (a.op, b.op) and not {"text", "base"} & {a.op, b.op} else Verdict.NO
    return leaf(a, b)


def _same(condition: bool) -> Verdict:
    return Verdict.YES if condition else Verdict.NO


def _members(node: Node) -> tuple[Node, ...]:
    return node.args if node.op == "list" else (node,)


def _is_assignment(node: Node) -> bool:
    """``x=2, y=3``: a list whose members have names of their own."""
    return (
        node.op == "list"
        and all(member.op == "label" for member in node.args)
        and len({member.name for member in node.args}) == len(node.args)
    )


def _compare_assignment(assignment: Node, other: Node, leaf: Leaf) -> Verdict | None:
    """``x=2, y=3`` is (2,3) and "2,3" but not "3,2": the names, in the alphabet's order, give the places.

    Names that do not follow each other in the alphabet (``m=2, b=3``) stay in the order in which they stand.
    """
    members = [*assignment.args]
    if "".join(sorted(member.name for member in members)) in "abcdefghijklmnopqrstuvwxyz":
        members.sort(key=lambda member: member.name)
    if other.op not in ("group", "list") or len(other.args) != len(members):
        return Verdict.NO
    if other.op == "group" and other.name != "()":
        return Verdict.NO
    return _all([_compare(x.args[0], y, leaf) for x, y in zip(members, other.args, strict=True)])


def _compare_relations(a: Node, b: Node, leaf: Leaf) -> Verdict | None:
    if a.op == b.op == "label" and a.name == b.name:
        return _compare(a.args[0], b.args[0], leaf)
    if {a.op, b.op} <= {"rel", "label"}:
        return _compare_equations(a, b, leaf)
    relation, other = (a, b) if a.op in ("rel", "label") else (b, a)
    if relation.op == "label":
        return _compare(relation.args[0], other, leaf)
    if "opaque" in (a.op, b.op):
        return None
    return Verdict.NO


def _compare_equations(a: Node, b: Node, leaf: Leaf) -> Verdict | None:
    """Two equations are equal when their differences are proportional; the leaf sees ``Node("equation")``."""
    sides = [_sides(node) for node in (a, b)]
    if sides[0] is None or sides[1] is None:
        return Verdict.NO
    (left, right), (other_left, other_right) = sides[0], sides[1]
    same = _all([_compare(left, other_left, leaf), _compare(right, other_right, leaf)])
    if same is Verdict.YES or any(node.op == "rel" and node.name != "=" for node in (a, b)):
        return same if a.op != b.op or a.op == "label" or a.name == b.name else Verdict.NO
    try:
        first = Node("equation", (make("add", left, make("neg", right)),))
        second = Node("equation", (make("add", other_left, make("neg", other_right)),))
    except UnreadableError:
        return Verdict.NO
    if "num" in (first.args[0].op, second.args[0].op):  # 1 = 2 says nothing
        return same
    return leaf(first, second)


def _sides(node: Node) -> tuple[Node, Node] | None:
    if len(node.args) != 2:
        return None
    return (node.args[1], node.args[0]) if node.op == "label" else (node.args[0], node.args[1])


def _all(verdicts: Sequence[Verdict | None]) -> Verdict | None:
    if Verdict.NO in verdicts:
        return Verdict.NO
    if None in verdicts:
        return None
    return Verdict.UNKNOWN if Verdict.UNKNOWN in verdicts else Verdict.YES


def _unordered(first: Sequence[Node], second: Sequence[Node], leaf: Leaf) -> Verdict | None:
    """Pair equal members; equality is transitive, so the first free partner will do."""
    if len(first) != len(second) or len(first) > 60:
        return Verdict.NO
    free = list(second)
    undecided = False
    for member in first:
        verdicts = [_compare(member, other, leaf) for other in free]
        if Verdict.YES in verdicts:
            del free[verdicts.index(Verdict.YES)]
        elif None in verdicts or Verdict.UNKNOWN in verdicts:
            undecided = True
        else:
            return Verdict.NO
    return None if undecided else Verdict.YES
