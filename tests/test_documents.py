"""The documents agree with the code: links lead somewhere, and every method and session is named."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dttrl.interop.formats import FORMATS
from dttrl.method.methods import METHODS
from dttrl.method.voting.registry import METHODS as VOTING

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "cli/*.md", "docs/*.md", "data/*.md", "benchmarks/*.md", "runs/*.md")
    for path in ROOT.glob(pattern)
)


PROSE = [
    "README.md",
    "CHANGELOG.md",
    *(f"docs/{name}.md" for name in ("results", "latent", "vllm", "servers", "voting", "speed", "openrlhf")),
]
TABLES = ROOT / "data" / "reference" / "tables"


def text_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def sentences(page: str) -> list[str]:
    """The sentences of a page's paragraphs and items: what stands outside of code, tables, headings."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->|^(?:#|\||!\[).*?$", "", page, flags=re.MULTILINE | re.DOTALL)
    blocks = re.split(r"\n\s*\n|^(?:- |\d+\. )", prose, flags=re.MULTILINE)
    found = (sentence for block in blocks for sentence in re.split(r"(?<=[.!?])\**\s+", block))
    return [sentence for sentence in found if sentence.strip()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_within_the_repository_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text("utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(path: Path) -> None:
    named = re.findall(r"\b(?:dttrl|cli|tests|benchmarks)/[\w./-]+\.\w+", path.read_text("utf-8"))
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", PROSE)
def test_sentences_are_short(name: str) -> None:
    lengths = {sentence: len(sentence.split()) for sentence in sentences(text_of(name))}
    assert [sentence for sentence, words in lengths.items() if words > 45] == []
    assert sum(lengths.values()) / len(lengths) < 20


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    page = (
        "# A heading\n\nOne. **Two.** Three\nfour .5\n\n| a | b |\n\n- Five six.\n- Seven\n\n```\ncode\n```\n"
    )
    assert [s.split() for s in sentences(page)] == [
        ["One."], ["**Two."], ["Three", "four", ".5"], ["Five", "six."], ["Seven"],
    ]  # fmt: skip


def test_the_findings_are_one_page() -> None:
    assert len(text_of("docs/results.md").splitlines()) <= 150


@pytest.mark.parametrize("script", ["appendix.py", "latent_page.py"])
def test_the_tables_of_a_page_are_what_the_files_give(script: str) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "findings" / script, TABLES, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
