"""Graders of other packages, through the entry points of group ``dttrl.graders``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from dttrl.answers.equivalence import Verdict
from dttrl.answers.extraction import Extraction
from dttrl.answers.grading import Grader
from dttrl.errors import InputError
from dttrl.settings.commands import ScoreConfig
from dttrl.settings.files import load_config

MODULE = '''
class Formula:
    """Chemical formulas: the order of the atoms does not count."""

    def extract(self, text):
        return text.rpartition("formula:")[2].strip() or None

    def equal(self, a, b):
        return sorted(a) == sorted(b)


class Lopsided:
    def equal(self, a, b):
        return a < b


class Failing:
    def extract(self, text):
        raise RuntimeError("no")

    def equal(self, a, b):
        raise RuntimeError("no")


class Useless:
    pass
'''
NAMES = {
    "formula": "Formula",
    "lopsided": "Lopsided",
    "failing": "Failing",
    "useless": "Useless",
    "gone": "Gone",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that is installed in every respect that matters here."""
    (tmp_path / "chemistry_graders.py").write_text(MODULE)
    info = tmp_path / "chemistry_graders-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chemistry-graders\nVersion: 1.0\n")
    lines = [f"{name} = chemistry_graders:{value}" for name, value in NAMES.items()]
    (info / "entry_points.txt").write_text("[dttrl.graders]\n" + "\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "formula" in {point.name for point in metadata.entry_points(group="dttrl.graders")}
    yield
    sys.modules.pop("chemistry_graders", None)


@pytest.mark.usefixtures("installed")
def test_a_custom_grader_finds_and_compares() -> None:
    with Grader(kind="formula") as grader:
        assert grader.extract("so the formula: HO2") == Extraction("HO2", "custom", 16)
        assert grader.extract("the formula:") == Extraction()
        assert grader.classes(["H2O", "OH2", None, "CO2", "O2C", ""]).tolist() == [0, 0, -1, 1, 1, -1]
        assert grader.match("2HO", ["CO2", "H2O"]) == 1
        assert grader.counters["custom"] > 0
        assert grader._worker is None


@pytest.mark.usefixtures("installed")
def test_failures_and_asymmetry_are_unknown() -> None:
    with Grader(kind="lopsided") as grader:
        assert grader.equal("a", "b") is grader.equal("b", "a") is Verdict.UNKNOWN
        assert grader.equal("a", "a") is Verdict.YES
        assert grader.extract(r"\boxed{a b}").answer == "a b"  # found as a text answer is
    with Grader(kind="failing") as grader:
        assert grader.equal("a", "b") is Verdict.UNKNOWN
        assert grader.extract("a") == Extraction()
        assert grader.counters["unknown"] == 1


@pytest.mark.usefixtures("installed")
def test_what_cannot_be_used_is_one_line() -> None:
    for name, message in (
        ("useless", "no method equal"),
        ("gone", "cannot be loaded"),
        ("nothing", "formula"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            Grader(kind=name)
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("installed")
def test_the_configuration_knows_the_installed_kinds() -> None:
    assert load_config(ScoreConfig, None, {"kind": "formula"}).scoring.kind == "formula"
    with pytest.raises(InputError, match="known are auto, math"):
        load_config(ScoreConfig, None, {"kind": "formulae"})
