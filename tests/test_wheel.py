"""What an installation gets: the packages, their versions, their typing markers.

The wheel itself is built and used outside the repository by ``nox -s wheel``.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from setuptools import find_packages

import dttrl

ROOT = Path(__file__).resolve().parents[1]
ROOTS = (ROOT, ROOT / "cli")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def normal(name: str) -> str:
    """The form in which package names compare (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_wheel_gets_every_package_and_no_other(pyproject: dict[str, Any]) -> None:
    find = pyproject["tool"]["setuptools"]["packages"]["find"]
    assert tuple(ROOT / where for where in find["where"]) == ROOTS
    found = [name for where in ROOTS for name in find_packages(str(where), include=find["include"])]
    assert {name.partition(".")[0] for name in found} == {"dttrl", "dttrl_cli"}
    with_code = {
        ".".join(path.parent.relative_to(where).parts)
        for where, name in zip(ROOTS, ("dttrl", "dttrl_cli"), strict=True)
        for path in (where / name).rglob("*.py")
    }
    assert set(found) == with_code, "a folder with modules needs an __init__.py"


def test_cli_is_a_source_root_and_no_package() -> None:
    names = {path.name for path in (ROOT / "cli").iterdir() if path.suffix != ".egg-info"}
    assert names - {"__pycache__"} == {"README.md", "dttrl_cli"}


def test_both_packages_say_that_they_are_typed(pyproject: dict[str, Any]) -> None:
    data = pyproject["tool"]["setuptools"]["package-data"]
    for root, name in zip(ROOTS, ("dttrl", "dttrl_cli"), strict=True):
        assert "py.typed" in data[name]
        assert (root / name / "py.typed").is_file()


def test_the_version_is_written_in_one_place(pyproject: dict[str, Any]) -> None:
    assert "version" in pyproject["project"]["dynamic"]
    assert pyproject["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dttrl.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", dttrl.__version__)


def test_the_tested_set_lies_within_the_ranges(pyproject: dict[str, Any]) -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert all(name == normal(name) for name in pins)
    assert list(pins) == sorted(pins)
    project = pyproject["project"]
    for text in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        wanted = Requirement(text)
        if normal(wanted.name) == "setuptools":
            continue  # builds the package; pip takes its own version in an isolated environment
        assert normal(wanted.name) in pins, f"{wanted.name} is not pinned in constraints.txt"
        assert wanted.specifier.contains(pins[normal(wanted.name)]), text
