"""The generated problems of data/recipes/smollm2."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RECIPE = Path(__file__).resolve().parents[2] / "data" / "recipes" / "smollm2"
sys.path.insert(0, str(RECIPE))
try:
    import problems
finally:
    sys.path.remove(str(RECIPE))

from dttrl.answers.extraction import extract  # noqa: E402

STEP = re.compile(r"([\d +*-]+) = (\d+)")


def drawn(family: problems.Family, count: int = 300) -> Iterator[problems.Problem]:
    rng = random.Random(1)
    return (problems.draw(family, rng, reserved=index % 2 == 0) for index in range(count))


@pytest.mark.parametrize("family", problems.FAMILIES)
def test_every_step_and_the_boxed_answer_are_right(family: problems.Family) -> None:
    for problem in drawn(family):
        text = problems.worked(problem)
        assert extract(text).answer == problems.answer(problem)
        assert int(problems.answer(problem)) > 0
        if family == "long-sums":
            assert int(problems.answer(problem)) == sum(problem.numbers)
        steps = STEP.findall(text)
        assert len(steps) >= 2
        for left, right in steps:
            first, *rest = re.findall(r"[+*-]?\s*\d+", left)
            total = int(first)
            for term in rest:
                sign, value = term[0], int(term[1:])
                total = total * value if sign == "*" else total + value if sign == "+" else total - value
            assert total == int(right), (left, right)


def test_the_story_holds_its_numbers_and_asks_for_what_is_worked() -> None:
    for problem in drawn("two-steps"):
        text, (first, boxes, each) = problems.question(problem), problem.numbers
        assert set(map(int, re.findall(r"\d+", text))) == {first, boxes, each}
        taken = any(word in text for word in ("gave away", "use "))
        expected = boxes * each - first if taken else boxes * each + first
        assert problems.answer(problem) == str(expected)


@pytest.mark.parametrize("family", problems.FAMILIES)
def test_the_sets_are_disjoint_reserved_and_the_same_every_time(family: problems.Family) -> None:
    sets = problems.problem_sets(family)
    everything = [problem for part in sets for problem in part]
    assert [len(part) for part in sets] == [problems.TESTS, problems.HELDOUT, problems.WATCHED]
    assert len({tuple(sorted(problem.numbers)) for problem in everything}) == len(everything)
    assert all(problems.is_reserved(problem) for problem in everything)
    assert sets == problems.problem_sets(family)
    rng = random.Random(0)
    training = [problems.draw(family, rng, reserved=False) for _ in range(2000)]
    assert not any(problems.is_reserved(problem) for problem in training)


def test_sums_in_either_order_are_the_same_problem() -> None:
    pairs = [problem.numbers for problem in drawn("long-sums")]
    for one, two in pairs:
        reserved = problems.is_reserved(problems.Problem("long-sums", (one, two), 0))
        assert reserved == problems.is_reserved(problems.Problem("long-sums", (two, one), 1))
