"""Our own pairs of answers, by category (``tests/data/answer_pairs.tsv``): all right, no false "equal"."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from dttrl.answers.equivalence import Verdict
from dttrl.answers.grading import Grader
from dttrl.answers.normalization import normalize

PAIRS = Path(__file__).resolve().parents[2] / "data" / "answer_pairs.tsv"


def read_pairs() -> dict[str, list[tuple[str, str, bool]]]:
    found: dict[str, list[tuple[str, str, bool]]] = {}
    category = ""
    for line in PAIRS.read_text("utf-8").splitlines():
        if line.startswith("# ") and "\t" not in line:
            category = line[2:]
        else:
            sign, a, b = line.split("\t")
            assert sign in "=≠"
            found.setdefault(category, []).append((a, b, sign == "="))
    return found


CATEGORIES = read_pairs()


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(timeout_s=20.0) as opened:
        opened.equal(r"\sqrt{18}", r"3\sqrt2")
        yield opened


def test_there_are_many_pairs_of_both_sorts() -> None:
    verdicts = [equal for pairs in CATEGORIES.values() for _, _, equal in pairs]
    assert len(verdicts) >= 600
    assert 0.35 < sum(verdicts) / len(verdicts) < 0.75
    assert len(CATEGORIES) >= 28


@pytest.mark.parametrize("category", CATEGORIES)
def test_pairs_in_both_directions(grader: Grader, category: str) -> None:
    wrong = []
    for a, b, equal in CATEGORIES[category]:
        verdict = grader.equal(a, b)
        assert grader.equal(b, a) is verdict
        if (verdict is Verdict.YES) != equal:
            wrong.append((a, b, verdict.value))
    assert wrong == []


@pytest.mark.parametrize("category", ["fraction", "units", "set and list", "interval", "surd", "text answer"])
def test_classes_do_not_depend_on_the_order(grader: Grader, category: str) -> None:
    answers = [answer for a, b, _ in CATEGORIES[category][:14] for answer in (a, b)]
    class_N = grader.classes(answers).tolist()
    forward = dict(zip(answers, class_N, strict=True))
    backward = dict(zip(answers[::-1], grader.classes(answers[::-1]).tolist(), strict=True))
    for x, y in combinations(answers, 2):
        assert (forward[x] == forward[y]) == (backward[x] == backward[y])


def test_dress_never_changes_the_verdict_with_itself(grader: Grader) -> None:
    dressings = ("${}$", r"\({}\)", r"\[{}\]", "$${}$$", r"\boxed{{{}}}", "  {}\n", r"\displaystyle {}")
    for pairs in CATEGORIES.values():
        for a, _, _ in pairs:
            if (
                not normalize(a)
                or a.startswith(("$", "\\(", "\\[", ")", "`", '"', "~"))
                or a.count("{") != a.count("}")
            ):
                continue
            for dress in dressings:
                if dress == "${}$" and normalize(a).endswith("usd}"):
                    continue
                assert grader.equal(a, dress.format(a)) is Verdict.YES, (a, dress)


def test_no_pair_takes_long() -> None:
    seconds = []
    with Grader(timeout_s=2.0) as fresh:
        fresh.equal(r"\sqrt{18}", r"3\sqrt2")
        for pairs in CATEGORIES.values():
            for a, b, _ in pairs:
                begin = time.perf_counter()
                fresh.equal(a, b)
                seconds.append(time.perf_counter() - begin)
    seconds.sort()
    assert seconds[len(seconds) // 2] < 0.005
    assert seconds[-1] < 2.0 + 30.0  # the limit, and a new worker where one was killed
