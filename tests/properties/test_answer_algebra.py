"""Laws of equality on generated expressions, and a fixed amount of fuzz."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dttrl.answers.equivalence import Verdict, exact_equal_normalized
from dttrl.answers.extraction import Extraction, extract
from dttrl.answers.grading import Grader
from dttrl.answers.normalization import normalize

PAIRS = Path(__file__).resolve().parents[1] / "data" / "answer_pairs.tsv"
FUZZ_STRINGS = 4_000

NUMBERS = st.integers(1, 30).map(str)
LEAVES = NUMBERS | st.sampled_from(["x", "y", r"\pi", "n", r"\sqrt{2}", "0.5", r"\frac{1}{3}"])
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: (
        st.tuples(inner, inner).map(lambda t: f"({t[0]}+{t[1]})")
        | st.tuples(inner, inner).map(lambda t: f"({t[0]})({t[1]})")
        | st.tuples(inner, inner).map(lambda t: rf"\frac{{{t[0]}}}{{{t[1]}}}")
        | inner.map(lambda a: rf"\sqrt{{{a}}}")
        | inner.map(lambda a: f"({a})^2")
    ),
    max_leaves=5,
)


def exact_equal(a: str, b: str) -> Verdict | None:
    return exact_equal_normalized(normalize(a), normalize(b))


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(timeout_s=20.0) as opened:
        yield opened


GRADER = Grader(timeout_s=20.0)


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    GRADER.close()


@settings(deadline=None, max_examples=60)
@given(EXPRESSIONS, EXPRESSIONS, st.integers(2, 9))
def test_reflexive_symmetric_and_transitive(a: str, b: str, k: int) -> None:
    same = [a, f"({a})", f"{k}({a})/{k}", f"({a})+({b})-({b})"]
    for x in same:
        assert GRADER.equal(x, x) is Verdict.YES
        for y in same:
            assert GRADER.equal(x, y) is GRADER.equal(y, x) is Verdict.YES
    other = f"({a})+({b})"
    assert GRADER.equal(a, other) is GRADER.equal(other, a) is Verdict.NO  # b is positive
    assert len(set(GRADER.classes([*same, other]).tolist())) == 2


@settings(deadline=None, max_examples=60)
@given(EXPRESSIONS)
def test_a_difference_far_beyond_floating_point_is_one(a: str) -> None:
    assert GRADER.equal(a, f"{a}+10^{{-150}}") is Verdict.NO
    assert GRADER.equal(f"{a}+10^{{-150}}", f"10^{{-150}}+({a})") is Verdict.YES
    assert GRADER.equal(f"({a})(1+10^{{-150}})", a) is Verdict.NO  # a is positive


LATEX_AND_PYTHON = st.recursive(
    st.sampled_from([("x", "x"), ("y", "y"), (r"\pi", "pi"), ("2", "2.0"), (r"\frac{1}{3}", "(1/3)")]),
    lambda inner: (
        st.tuples(inner, inner).map(lambda t: (f"({t[0][0]}+{t[1][0]})", f"({t[0][1]}+{t[1][1]})"))
        | st.tuples(inner, inner).map(lambda t: (f"({t[0][0]}-{t[1][0]})", f"({t[0][1]}-{t[1][1]})"))
        | st.tuples(inner, inner).map(lambda t: (f"({t[0][0]})({t[1][0]})", f"({t[0][1]}*{t[1][1]})"))
        | inner.map(lambda a: (f"|{a[0]}|", f"abs({a[1]})"))
        | inner.map(lambda a: (rf"\sin({a[0]})", f"sin({a[1]})"))
        | inner.map(lambda a: (rf"\sqrt{{({a[0]})^2}}", f"sqrt(({a[1]})**2)"))
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=150)
@given(LATEX_AND_PYTHON, LATEX_AND_PYTHON, st.floats(-9, 9), st.floats(-9, 9))
def test_what_differs_somewhere_is_never_equal(
    a: tuple[str, str], b: tuple[str, str], x: float, y: float
) -> None:
    """Python's own arithmetic, at points of its own, is the judge of two unrelated expressions."""
    names = {"x": x, "y": y, "pi": math.pi, "sin": math.sin, "sqrt": math.sqrt}
    first, second = eval(a[1], names), eval(b[1], names)
    found = GRADER.equal(a[0], b[0])
    assert GRADER.equal(b[0], a[0]) is found
    if abs(first - second) > 1e-6 * (1 + abs(first) + abs(second)):
        assert found is not Verdict.YES


@settings(deadline=None, max_examples=60)
@given(EXPRESSIONS)
def test_dress_never_changes_a_class(a: str) -> None:
    dressed = [
        a,
        f"${a}$",
        rf"\({a}\)",
        a.replace(r"\frac", r"\dfrac"),
        a.replace(r"\frac", r"\tfrac"),
        a.replace("(", r"\left(").replace(")", r"\right)"),
        a.replace("(", " ( ").replace(")", " ) ").replace("+", " + "),
        a.replace("+", r"\, +\ "),
        rf"\boxed{{{a}}}",
        f" {a} .",
    ]
    assert {normalize(d) for d in dressed} == {normalize(a)}
    assert set(GRADER.classes(dressed).tolist()) == {0}


@settings(deadline=None, max_examples=60)
@given(EXPRESSIONS, st.sampled_from(["12", "x=5", "(1,2)"]))
def test_what_is_different_stays_different(a: str, b: str) -> None:
    assert GRADER.equal(f"{a}+1", a) is Verdict.NO
    assert GRADER.equal(rf"\text{{no {b}}}", a) is Verdict.NO


BALANCED = st.recursive(
    st.text(alphabet="0123456789xyz+-=^_ ,.\\;", min_size=1, max_size=6).filter(lambda t: "\\" not in t[-1:]),
    lambda inner: st.tuples(inner, inner).map(lambda t: t[0] + "{" + t[1] + "}"),
    max_leaves=6,
)


@settings(deadline=None, max_examples=100)
@given(
    BALANCED, st.sampled_from(["", "So ", "First \\boxed{3}, then "]), st.sampled_from(["", ".", " Done."])
)
def test_a_box_returns_what_it_holds(content: str, before: str, after: str) -> None:
    stripped = content.strip()
    if not normalize(stripped) or "\\{" in content or "\\}" in content:
        return
    found = extract(f"{before}\\boxed{{{content}}}{after}")
    assert found.source == "boxed"
    assert found.start == len(before)
    assert found.answer is not None
    assert stripped.startswith(found.answer)
    assert stripped[len(found.answer) :].strip(".,;") == ""


def _mutations(seed: int, count: int) -> Iterator[str]:
    """Known answers, cut, doubled, joined and with characters replaced; the same strings every time."""
    rnd = random.Random(seed)
    known = [
        field
        for line in PAIRS.read_text("utf-8").splitlines()
        if "\t" in line
        for field in line.split("\t")[1:]
    ]
    odd = [
        "\x00",
        "\ud800",
        "\u200f",
        "٣",
        "½",
        "\\",
        "{",
        "}",
        "$",
        "^",
        "_",
        "\\frac",
        "\\boxed{",
        "!",
        "e",
        ",",
    ]
    for _ in range(count):
        text = rnd.choice(known)
        for _ in range(rnd.randint(1, 4)):
            place = rnd.randint(0, len(text))
            action = rnd.randrange(5)
            if action == 0:
                text = text[:place] + rnd.choice(odd) + text[place:]
            elif action == 1:
                text = text[:place] + text[place + rnd.randint(1, 4) :]
            elif action == 2:
                text = text + rnd.choice(known)
            elif action == 3:
                text = text[:place] + text[:place] + text[place:]
            else:
                text = text[place:] + text[:place]
        yield text


def test_fuzz_normalisation_reading_and_extraction() -> None:
    """No exception escapes, comparison is symmetric, normalisation settles."""
    previous = "1"
    for text in _mutations(seed=1, count=FUZZ_STRINGS):
        once = normalize(text)
        assert exact_equal(text, previous) is exact_equal(previous, text), (text, previous)
        assert exact_equal(text, text) is (Verdict.YES if once else Verdict.NO), text
        for kind in ("math", "integer", "choice", "text"):
            assert isinstance(extract(f"The answer is {text}", kind=kind, last_number=True), Extraction)
            assert isinstance(extract(f"\\boxed{{{text}}}", kind=kind), Extraction)
        previous = text


def test_fuzz_the_worker(grader: Grader) -> None:
    """Whatever reaches the worker comes back as a verdict, the same in both directions."""
    texts = [*_mutations(seed=2, count=240)]
    for a, b in zip(texts[::2], texts[1::2], strict=True):
        assert grader.equal(a, b) is grader.equal(b, a)
        assert grader.equal(a, a) is (Verdict.YES if grader.key(a) else Verdict.NO)
    assert grader.counters["killed"] == 0
