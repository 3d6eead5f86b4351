"""Why two answers are or are not equal, in words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dttrl.answers.equivalence import Verdict
from dttrl.answers.explanation import explain, explain_classes
from dttrl.answers.grading import Grader


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(timeout_s=20.0) as opened:
        yield opened


@pytest.mark.parametrize(
    ("a", "b", "verdict", "rule"),
    [
        ("$7$", "7.", "yes", "their normalised spelling is the same"),
        (r"\frac12", "0.5", "yes", "both are the number 1/2"),
        ("12", "12 cm", "yes", "both are the number 12"),
        ("12 cm", r"12\text{ m}", "no", "their units differ: cm and m"),
        ("1/3", "0.333", "no", "the numbers 1/3 and 333/1000 differ exactly"),
        ("1,2", "2,1", "yes", "exact arithmetic and structure agree"),
        ("(1,2)", "1,2", "no", "one is a tuple or open interval, the other an unordered list"),
        ("(1,2)", "(2,1)", "no", "each is a tuple or open interval, and their parts differ"),
        (r"\sqrt8", r"2\sqrt2", "yes", "evaluated to 200 digits, or by algebra, they agree"),
        (r"\sqrt8", r"3\sqrt2", "no", "their values differ"),
        (r"\frac{1", "1", "no", "one is text that cannot be read, or in two ways, the other a number"),
        ("", "1", "no", "an answer that holds nothing equals nothing"),
        ("(10^9)!", "7", "unknown", "not decided"),
    ],
)
def test_rules(grader: Grader, a: str, b: str, verdict: str, rule: str) -> None:
    found = explain(a, b, grader)
    assert found.verdict is Verdict(verdict)
    assert found.rule.startswith(rule)
    assert (found.normalized_a, found.normalized_b) == (grader.key(a), grader.key(b))


def test_kinds_that_compare_by_spelling() -> None:
    with Grader(kind="choice") as grader:
        assert "kind choice" in explain("A", "B", grader).rule


def test_a_question_is_explained_class_by_class(grader: Grader) -> None:
    answers = ["0.5", r"\frac12", "0.5", "2", None, "7"]
    found = explain_classes(answers, grader.classes(answers), grader)
    assert [(e.a, e.b, e.verdict) for e in found] == [
        ("0.5", r"\frac12", Verdict.YES),
        ("0.5", "2", Verdict.NO),
        ("0.5", "7", Verdict.NO),
        ("2", "7", Verdict.NO),
    ]
    assert explain_classes([None, ""], grader.classes([None, ""]), grader) == []
