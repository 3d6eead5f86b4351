"""Why two answers are, or are not, the same: the rule that decided, and what was compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dttrl.answers.equivalence import Verdict, exact_equal_normalized
from dttrl.answers.exact import Node
from dttrl.answers.grading import Grader
from dttrl.answers.reading import read

_NAMES: Final = {
    "num": "a number", "sym": "a symbol", "word": "a word", "text": "text", "list": "an unordered list",
    "union": "a union of intervals", "matrix": "a matrix", "rel": "a relation", "label": "a named value",
    "base": "a number in another base", "broken": "text that cannot be read, or in two ways",
    "opaque": "mathematics that is not read completely", "inf": "infinity",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict on two answers, the rule behind it, and their normalised forms."""

    a: str
    b: str
    verdict: Verdict
    rule: str
    normalized_a: str
    normalized_b: str


def explain(a: str, b: str, grader: Grader) -> Explanation:
    r"""Say why two answers are or are not equal to a grader.

    >>> with Grader() as grader:
    ...     print(explain(r"\frac{1}{2}", "0.5", grader).rule)
    both are the number 1/2
    """
    first, second = grader.key(a), grader.key(b)
    verdict = grader.equal(a, b)
    return Explanation(a, b, verdict, _rule(first, second, verdict, grader), first, second)


def explain_classes(
    answers: Sequence[str | None], class_N: NDArray[np.int32], grader: Grader, *, limit: int = 8
) -> list[Explanation]:
    """Explain one question: the spellings within each class, then its largest classes against each other."""
    counts = np.bincount(class_N[class_N >= 0], minlength=int(class_N.max(initial=-1)) + 1)
    largest = sorted(range(len(counts)), key=lambda c: (-counts[c], c))[:limit]
    spellings = grader.spelling(answers, class_N)
    found: list[Explanation] = []
    for class_id in largest:
        members = {a.strip() for a, c in zip(answers, class_N.tolist(), strict=True) if a and c == class_id}
        others = sorted(members - {spellings[class_id]}, key=lambda m: (len(m), m))
        found += [explain(spellings[class_id], other, grader) for other in others[:limit]]
    for place, class_id in enumerate(largest):
        for other_id in largest[place + 1 :]:
            found.append(explain(spellings[class_id], spellings[other_id], grader))
    return found


def _rule(first: str, second: str, verdict: Verdict, grader: Grader) -> str:
    if not first or not second:
        return "an answer that holds nothing equals nothing"
    if first == second:
        return "their normalised spelling is the same"
    if grader.custom is not None:
        return f"the grader {grader.kind} says so" if verdict is not Verdict.UNKNOWN else _UNDECIDED
    if grader.kind in ("choice", "text"):
        return f"their spelling differs, and answers of kind {grader.kind} are compared by spelling"
    if verdict is Verdict.UNKNOWN:
        return _UNDECIDED
    exact = exact_equal_normalized(first, second)
    (node_a, unit_a), (node_b, unit_b) = read(first), read(second)
    if exact is None:
        found = "agree" if verdict is Verdict.YES else "differ"
        return f"evaluated to 200 digits, or by algebra, they {found}"
    if unit_a and unit_b and unit_a != unit_b:
        return f"their units differ: {unit_a} and {unit_b}"
    if exact is Verdict.YES:
        if node_a.op == node_b.op == "num":
            return f"both are the number {node_a.value}"
        return "exact arithmetic and structure agree" + ("" if unit_a == unit_b else ", one names a unit")
    if node_a.op == node_b.op == "num":
        return f"the numbers {_short(str(node_a.value))} and {_short(str(node_b.value))} differ exactly"
    if node_a.op not in _NAMES and node_b.op not in ("list", "group", "text", "broken"):
        return "their values differ"
    shown = [_described(node_a), _described(node_b)]
    if shown[0] == shown[1]:
        return f"each is {shown[0]}, and their parts differ"
    return f"one is {shown[0]}, the other {shown[1]}"


_UNDECIDED: Final = "not decided (no value, too much work, or the time limit), so they count as different"


def _described(node: Node) -> str:
    if node.op == "group":
        return "a tuple or open interval" if node.name == "()" else f"an interval or tuple in {node.name}"
    return _NAMES.get(node.op, "an expression")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:30]}... ({len(text)} characters)"
