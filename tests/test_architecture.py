"""Rules on the code itself that no linter checks: sizes, names, import cost, leftovers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULE_LINES = 400
FUNCTION_LINES = 80
VAGUE = {"utils", "util", "common", "helpers", "helper", "misc", "tools"}
HEAVY = ("torch", "transformers", "ray", "vllm", "pomegranate", "matplotlib", "pandas")
SOURCES = sorted([*(ROOT / "dttrl").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def too_long(name: str, text: str) -> list[str]:
    """Everything in a module that is over a size limit, as ``file[:line] what: size``."""
    lines = len(text.splitlines())
    found = [f"{name}: {lines} lines"] if lines > MODULE_LINES else []
    for node in functions(ast.parse(text)):
        size = (node.end_lineno or node.lineno) - node.lineno + 1
        if size > FUNCTION_LINES:
            found.append(f"{name}:{node.lineno} {node.name}: {size} lines")
    return found


def printing(name: str, text: str) -> list[str]:
    """Every call of the built-in ``print``."""
    return [
        f"{name}:{node.lineno}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def test_sizes_stay_within_the_limits() -> None:
    assert len(SOURCES) > 10
    assert [line for path in SOURCES for line in too_long(relative(path), path.read_text("utf-8"))] == []


def test_a_long_module_and_a_long_function_are_seen() -> None:
    body = "\n".join("    x = 1" for _ in range(FUNCTION_LINES))
    assert too_long("m.py", f"def f():\n{body}\n") == [f"m.py:1 f: {FUNCTION_LINES + 1} lines"]
    assert too_long("m.py", "\n" * (MODULE_LINES + 1)) == [f"m.py: {MODULE_LINES + 1} lines"]


def test_the_library_never_prints() -> None:
    library = [path for path in SOURCES if path.is_relative_to(ROOT / "dttrl")]
    assert [line for path in library for line in printing(relative(path), path.read_text("utf-8"))] == []
    assert printing("m.py", "import sys\nprint(1)\n") == ["m.py:2"]


def test_modules_are_named_after_what_they_hold() -> None:
    assert [relative(path) for path in SOURCES if path.stem in VAGUE or path.parent.name in VAGUE] == []


def named_twice(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def test_one_name_is_one_thing() -> None:
    library = [path for path in SOURCES if path.is_relative_to(ROOT / "dttrl") and path.stem != "__init__"]
    assert named_twice([path.stem for path in library]) == []
    classes = [
        node.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert named_twice(classes) == []


def test_nothing_is_left_unfinished() -> None:
    leftover = re.compile(r"\b(raise NotImplementedError|TODO|FIXME|XXX)\b|pragma: no cover")
    found = [
        f"{relative(path)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if leftover.search(line)
    ]
    assert found == []


def test_layers_in_parentheses_do_not_exist_yet() -> None:
    """import-linter skips an optional layer silently; so it may be optional only while there is none."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    optional = re.findall(r"\((\w+)\)", " ".join(layers))
    here = [name for name in optional if any((ROOT / "dttrl").glob(f"{name}.py"))]
    here += [name for name in optional if (ROOT / "dttrl" / name).is_dir()]
    assert here == [], "these exist now: take away their parentheses in pyproject.toml"


def loaded(code: str) -> set[str]:
    """Top-level modules in ``sys.modules`` after ``code`` has run in a new interpreter."""
    report = "\nimport sys\nsys.stderr.write('\\n' + ' '.join(sys.modules))"
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


def test_importing_the_library_loads_no_package_at_all() -> None:
    assert loaded("import dttrl") & {*HEAVY, "numpy", "pyarrow", "pydantic", "rich", "typer"} == set()


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    assert loaded("import dttrl_cli.app") & set(HEAVY) == set()


@pytest.mark.parametrize("command", ["", "generate", "import", "score", "vote", "train", "analyze"])
def test_help_loads_nothing_heavy(command: str) -> None:
    arguments = ["dttrl", *command.split(), "--help"]
    code = f"import sys\nsys.argv = {arguments!r}\nfrom dttrl_cli.app import main\n"
    code += "try:\n    assert not main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    modules = loaded(code)
    assert "dttrl_cli" in modules
    assert modules & set(HEAVY) == set()


def tracked() -> list[Path]:
    """Files that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    return [path for line in done.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_no_file_mentions_a_path_of_one_machine() -> None:
    folders = "|".join(["work", "farm", "root", "home", "Users"])
    machine = re.compile(rf"(?<![\w.])/({folders})/|[.]pyenv")
    assert machine.search("open('/" + "home/me/x')")
    found = []
    for path in tracked():
        try:
            lines = path.read_text("utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # weights and Parquet files
        found += [f"{relative(path)}:{n}" for n, line in enumerate(lines, start=1) if machine.search(line)]
    assert found == []
