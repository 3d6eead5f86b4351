"""The kind of answer by the name of a data set, and graders that choose by it."""

from __future__ import annotations

import pytest

from dttrl.answers.equivalence import Verdict
from dttrl.answers.grading import Grader
from dttrl.answers.kinds import kind_of_source


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("aime2024", "integer"),
        ("AIME-TTT", "integer"),
        ("HuggingFaceH4/aime_2024", "integer"),
        ("aime", "integer"),
        ("amc", "math"),
        ("AMC-TTT", "math"),
        ("math500", "math"),
        ("MATH-500", "math"),
        ("hmmt_feb_2025", "math"),
        ("gpqa_diamond", "choice"),
        ("Idavidrein/gpqa", "choice"),
        ("mmlu_pro", "choice"),
        ("arc_challenge", "choice"),
        ("march", "math"),
        ("claimed", "math"),
        ("last letters", "text"),
        ("lastletters_gpt3.5", "text"),
        ("", "math"),
        (None, "math"),
    ],
)
def test_kind_of_source(source: str | None, kind: str) -> None:
    assert kind_of_source(source) == kind


def test_an_id_counts_only_without_a_source() -> None:
    assert kind_of_source(None, "aime2025-7") == "integer"
    assert kind_of_source("math500", "aime2025-7") == "math"


def test_an_auto_grader_chooses_and_counts_together() -> None:
    with Grader(kind="auto", use_algebra=False) as grader:
        assert grader.for_source("math500") is grader
        choice = grader.for_source("gpqa_diamond")
        assert choice.kind == "choice"
        assert grader.for_source("GPQA-TTT") is choice
        assert choice.extract("The correct option is (C).").answer == "C"
        assert grader.extract(r"\boxed{1200}").answer == "1200"
        assert grader.for_source("aime2024").extract(r"\boxed{1200}").answer is None
        assert grader.for_source(None, "lastletter-3").kind == "text"
        before = grader.counters["pairs"]
        assert choice.equal("A", "B") is Verdict.NO
        assert grader.counters["pairs"] == before + 1


def test_a_fixed_kind_stays() -> None:
    with Grader(kind="math", use_algebra=False) as grader:
        assert grader.for_source("gpqa_diamond") is grader
