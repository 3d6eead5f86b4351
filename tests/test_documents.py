"""The documents agree with the code: links lead somewhere, and every method and session is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dttrl.interop.formats import FORMATS
from dttrl.methods import METHODS
from dttrl.voting.registry import METHODS as VOTING

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "cli/*.md", "docs/*.md", "data/*.md", "benchmarks/*.md", "runs/*.md")
    for path in ROOT.glob(pattern)
)


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_within_the_repository_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (path.parent / link).exists()] == []


def test_the_voting_page_names_every_strategy_and_parameter() -> None:
    page = text_of("docs/voting.md")
    for name, info in VOTING.items():
        assert f"| `{name}` |" in page
        assert [key for key in info.parameters if f"`{key}=" not in page] == []


def test_the_readme_names_every_method() -> None:
    readme = text_of("README.md")
    assert [name for name in METHODS if f"`{name}`" not in readme] == []


def test_the_page_on_importing_names_every_format() -> None:
    page = text_of("docs/importing.md")
    assert [name for name in FORMATS if f"| `{name}` |" not in page] == []


def test_contributing_names_every_nox_session() -> None:
    tree = ast.parse(text_of("noxfile.py"))
    sessions = [
        found.group(1) if (found := re.search(r"name='([^']+)'", ast.unparse(decorator))) else node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if ast.unparse(decorator).startswith("nox.session")
    ]
    assert {"lint", "tests", "quickstart"} <= set(sessions)
    assert [name for name in sessions if f"| `{name}` |" not in text_of("CONTRIBUTING.md")] == []


def test_the_changelog_starts_with_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", text_of("CHANGELOG.md"), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_the_benchmarks_are_listed() -> None:
    listed = re.findall(r"^\| `(\w+\.py)` \|", text_of("benchmarks/README.md"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "benchmarks").glob("*.py"))
