"""Answer classes are a partition that does not depend on the order of the rollouts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dttrl.answers.equivalence import Verdict, exact_equal_normalized
from dttrl.answers.extraction import extract
from dttrl.answers.grading import Grader
from dttrl.answers.normalization import normalize

GRADER = Grader(use_algebra=False)

SPELLINGS = st.sampled_from(
    ["1/2", "0.5", r"\frac12", r"\dfrac{2}{4}", "x=1/2", "50\\%", "50", "12", "12 cm", r"12\text{ m}", "12.0",
     "(1,2)", "[1,2]", "1,2", "2, 1", r"\{2,1\}", "A", "(A)", "a", "Yes", r"\text{yes}", r"\sqrt{2}",
     r"\sqrt 2", r"\frac{1", "", None, "...", "1/2x", "x+1", "y=2", "x=2", "2", r"\pm 2", "-2,2", "4:30"]
)  # fmt: skip
ANSWERS = st.lists(SPELLINGS | st.integers(-5, 30).map(str) | st.none() | st.text(max_size=8), max_size=24)


def exact_equal(a: str, b: str) -> Verdict | None:
    return exact_equal_normalized(normalize(a), normalize(b))


def partition(answers: list[str | None]) -> list[int]:
    return [int(class_id) for class_id in GRADER.classes(answers)]


@settings(deadline=None, max_examples=100)
@given(ANSWERS)
def test_ids_are_dense_and_in_order(answers: list[str | None]) -> None:
    ids = [c for c in partition(answers) if c >= 0]
    assert list(dict.fromkeys(ids)) == list(range(len(set(ids))))
    for answer, class_id in zip(answers, partition(answers), strict=True):
        assert (class_id == -1) == (answer is None or normalize(answer) == "")


@settings(deadline=None, max_examples=100)
@given(ANSWERS, st.integers(0, 2**32 - 1))
def test_the_partition_does_not_depend_on_the_order(answers: list[str | None], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(answers))
    direct = partition(answers)
    shuffled = partition([answers[i] for i in order])
    pairs = {(direct[i], shuffled[j]) for j, i in enumerate(order.tolist())}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@settings(deadline=None, max_examples=100)
@given(ANSWERS)
def test_repeating_answers_changes_nothing(answers: list[str | None]) -> None:
    assert partition(answers + answers) == partition(answers) * 2


@settings(deadline=None, max_examples=100)
@given(ANSWERS)
def test_members_of_a_class_are_linked_by_equality(answers: list[str | None]) -> None:
    """Each member equals the class's longest spelling, and equal keys share a class."""
    class_of = dict(zip(answers, partition(answers), strict=True))
    for class_id in set(class_of.values()) - {-1}:
        members = [a for a, c in class_of.items() if c == class_id and a is not None]
        assert any(all(GRADER.equal(head, m) is Verdict.YES for m in members) for head in members)


@settings(deadline=None, max_examples=100)
@given(SPELLINGS, SPELLINGS)
def test_equal_is_symmetric_and_reflexive(a: str | None, b: str | None) -> None:
    a, b = a or "", b or ""
    assert exact_equal(a, b) is exact_equal(b, a)
    assert exact_equal(a, a) is (Verdict.YES if normalize(a) else Verdict.NO)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_compared_without_raising(a: str, b: str) -> None:
    assert exact_equal(a, b) is exact_equal(b, a)
    extract(a + b, last_number=True)
    extract(a + "\\boxed{" + b + "}", kind="integer")


MATHS = st.text(alphabet="0123456789.,-+*/^_(){}[]|\\ x!=<>%$eipfracsqt", max_size=40)


@settings(deadline=None, max_examples=100)
@given(MATHS, MATHS)
def test_any_mathematics_is_compared_without_raising(a: str, b: str) -> None:
    assert exact_equal(a, b) is exact_equal(b, a)
    assert normalize(normalize(a)) == normalize(normalize(normalize(a)))


@settings(deadline=None, max_examples=100)
@given(st.fractions(max_denominator=500), st.fractions(max_denominator=500))
def test_rational_numbers_are_equal_exactly_when_their_values_are(a: Fraction, b: Fraction) -> None:
    sign = "-" if a < 0 else ""
    latex = rf"{sign}\frac{{{abs(a.numerator)}}}{{{a.denominator}}}"
    plain = f"{b.numerator * 3}/{b.denominator * 3}"
    assert exact_equal(latex, plain) is (Verdict.YES if a == b else Verdict.NO)
    same = f"{a.numerator * 3}/{a.denominator * 3}"
    assert exact_equal(latex, same) is Verdict.YES


@settings(deadline=None, max_examples=100)
@given(st.integers(-(10**12), 10**12), st.integers(1, 6))
def test_integers_in_every_dress(n: int, zeros: int) -> None:
    dresses = [f"{n}", f"${n}$", f"{n}.{'0' * zeros}", f"{n:,}", rf"\text{{{n}}}", rf"\boxed{{{n}}}"]
    assert set(partition([*dresses, f"x = {n}", f"{n}."])) == {0}
    assert exact_equal(f"{n}", f"{n + 1}") is Verdict.NO
