"""Wrong input ends in exit code 2 and one line on stderr, and nothing that was there is touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dttrl_cli.app import main

GOOD: dict[str, list[Any]] = {
    "query_id": ["q", "q"],
    "sample_id": [0, 1],
    "text": [r"\boxed{1}", r"\boxed{2}"],
    "answer": ["1", "2"],
    "confidence": [1.0, 2.0],
    "gold": ["1", "1"],
}


def parquet(path: Path, **changes: Any) -> Path:
    columns = {name: values for name, values in (GOOD | changes).items() if values is not None}
    pq.write_table(pa.table(columns), path)
    return path


def empty(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def truncated(path: Path) -> Path:
    whole = parquet(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def damaged_page(path: Path) -> Path:
    """A file whose footer is whole while its data are not."""
    data = bytearray(parquet(path, text=["x" * 5000, "y" * 5000]).read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(bytes(data))
    return path


BAD_ROLLOUTS: dict[str, Callable[[Path], Path]] = {
    "empty file": empty,
    "truncated": truncated,
    "damaged page": damaged_page,
    "text instead of parquet": lambda path: (path.write_text("hello") and path) or path,
    "missing key column": lambda path: parquet(path, sample_id=None),
    "missing column": lambda path: parquet(path, text=None, answer=None),
    "wrong type": lambda path: parquet(path, text=[1.5, 2.5], answer=[[1], [2]]),
    "duplicate keys": lambda path: parquet(path, sample_id=[0, 0]),
    "null key": lambda path: parquet(path, query_id=["q", None]),
    "question appears again": lambda path: parquet(
        path, **{name: [values[0]] * 3 for name, values in GOOD.items()}
        | {"query_id": ["q", "r", "q"], "sample_id": [0, 0, 1]}
    ),
    "does not exist": lambda path: path.with_name("absent.parquet"),
}  # fmt: skip
COMMANDS = {
    "score": ["score", "FILE", "-o", "OUTPUT"],
    "vote": ["vote", "FILE", "-o", "OUTPUT"],
    "accuracy": ["analyze", "accuracy", "FILE", "-o", "OUTPUT"],
}


def one_line(capsys: pytest.CaptureFixture[str], command: list[str]) -> str:
    """Run a command that must fail as wrong input does; returns its line."""
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dttrl: error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert "Traceback" not in captured.err
    assert "unexpected" not in captured.err
    return captured.err


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", [*COMMANDS, "advise"])
@pytest.mark.parametrize("case", list(BAD_ROLLOUTS))
def test_bad_rollouts(tmp_path: Path, case: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = BAD_ROLLOUTS[case](tmp_path / "rollouts.parquet")
    output = tmp_path / "output.parquet"
    before = snapshot(tmp_path)
    typed = COMMANDS.get(command, [command, "FILE"])
    words = [{"FILE": str(file), "OUTPUT": str(output)}.get(word, word) for word in typed]
    error = one_line(capsys, words)
    assert file.name in error
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("command", list(COMMANDS))
def test_an_output_that_exists_stays_as_it_is(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = parquet(tmp_path / "rollouts.parquet")
    output = tmp_path / "output.parquet"
    output.write_text("mine")
    words = [{"FILE": str(file), "OUTPUT": str(output)}.get(word, word) for word in COMMANDS[command]]
    assert "--overwrite" in one_line(capsys, words)
    assert output.read_text() == "mine"


BAD_QUESTIONS = {
    "empty file": ("q.jsonl", ""),
    "no text": ("q.jsonl", '{"id": "a", "prompt": "1+1?"}\n{"id": "b", "prompt": "  "}\n'),
    "missing column": ("q.jsonl", '{"id": "a", "statement": "1+1?"}\n'),
    "wrong type": ("q.jsonl", '{"id": "a", "prompt": {"x": 1}}\n'),
    "duplicate ids": ("q.jsonl", '{"id": "a", "prompt": "1"}\n{"id": "a", "prompt": "2"}\n'),
    "broken line": ("q.jsonl", '{"id": "a", "prompt": "1"}\n{"id": \n'),
    "empty list": ("q.json", "[]"),
    "truncated parquet": ("q.parquet", "PAR1xxxx"),
}


@pytest.mark.parametrize("command", ["generate", "train"])
@pytest.mark.parametrize("case", list(BAD_QUESTIONS))
def test_bad_questions(tmp_path: Path, case: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, text = BAD_QUESTIONS[case]
    questions = tmp_path / name
    questions.write_text(text)
    before = snapshot(tmp_path)
    error = one_line(capsys, [command, "smollm2", str(questions), "-o", str(tmp_path / "output")])
    assert name in error
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "output").exists()


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "1+1?", "answer": "2"}) + "\n")
    return path


@pytest.mark.parametrize("command", ["generate", "train"])
@pytest.mark.parametrize("model", ["./absent-model", "absent.gguf"])
def test_a_model_that_does_not_exist(
    tmp_path: Path, questions: Path, command: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "output"
    error = one_line(capsys, [command, str(tmp_path / model), str(questions), "-o", str(output)])
    assert Path(model).name in error
    assert not output.exists()


def test_generate_writes_to_nothing_but_a_file(
    tmp_path: Path, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    before = snapshot(tmp_path)
    for output in (".", "..", "pipe", "/dev/null"):
        for more in ([], ["--overwrite"]):
            error = one_line(capsys, ["generate", "smollm2", str(questions), "-o", output, *more])
            assert "is not a regular file" in error
            assert "overwrite" not in error
    assert snapshot(tmp_path) == before


def test_a_run_folder_that_exists(
    tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("method: ttrl\n")
    before = snapshot(tmp_path)
    error = one_line(capsys, ["train", "smollm2", str(questions), "-o", str(run)])
    assert "--overwrite" in error
    assert "--resume" in error
    assert snapshot(tmp_path) == before


def test_a_folder_that_is_no_run_is_never_overwritten(
    tmp_path: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work")
    one_line(capsys, ["train", "smollm2", str(questions), "-o", str(folder), "--overwrite"])
    assert (folder / "chapter.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- a\n- b\n", "mapping"),
        ("method: [unclosed\n", "YAML"),
        ("nonsense: 1\n", "nonsense"),
        ("votes: many\n", "votes"),
        ("votes: 8\ntrain_samples: 9\n", "train-samples"),
    ],
)
def test_a_bad_configuration_file(
    tmp_path: Path, questions: Path, text: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    command = ["train", "m", str(questions), "--config", str(config), "-o", str(tmp_path / "run")]
    error = one_line(capsys, command)
    assert named in error
    assert "config.yaml" in error


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["generate"], "--output"),
        (["generate", "-o", "x.parquet"], "questions is needed"),
        (["train"], "questions is needed"),
        (["train", "--resume", "absent-run"], "absent-run"),
        (["train", "m", "q.jsonl", "--resume", "run"], "--resume"),
        (["train", "--resume", "run", "--overwrite"], "--overwrite"),
        (["train", "m", "q.jsonl", "--method", "magic"], "magic"),
        (["train", "m", "q.jsonl", "--votes", "many"], "votes: a number of rollouts or a range as 8..64"),
        (["train", "m", "q.jsonl", "--votes", "16..16"], "votes: a range goes from at least 1 up"),
        (["train", "m", "q.jsonl", "--votes", "16..64"], "at most votes (16, the least of 16..64)"),
        (["train", "m", "q.jsonl", "--until", "0.95"], "--until does nothing with one number of rollouts"),
        (["generate", "m", "q.jsonl", "-o", "x.parquet", "--until", "0.95"], "a range, as --samples 8..64"),
        (["generate", "m", "q.jsonl", "-o", "x.parquet", "--region", "all"], "--region does nothing with"),
        (["score", "x.parquet"], "--output"),
        (["score", "x.parquet", "-o", "x.csv"], "x.csv"),
        (["score", "x.parquet", "-o", "-"], "*.parquet"),
        (["analyze", "majority-ratio", "absent-run"], "absent-run"),
        (["analyze", "majority-ratio"], "runs"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_use(command: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named.lower() in one_line(capsys, command).lower()


def test_an_unknown_failure_is_one_line_and_the_variable_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr("dttrl.analysis.majority_ratio.majority_ratios", fail)
    assert main(["analyze", "majority-ratio", "x"]) == 1
    error = capsys.readouterr().err
    assert error == "dttrl: error: unexpected ZeroDivisionError: a b (set DTTRL_DEBUG=1 to see where)\n"
    monkeypatch.setenv("DTTRL_DEBUG", "1")
    assert main(["analyze", "majority-ratio", "x"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_says_how_to_go_on(
    tmp_path: Path, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dttrl.sampling.generation.generate", interrupt)
    monkeypatch.setattr("dttrl.analysis.majority_ratio.majority_ratios", interrupt)
    output = tmp_path / "r.parquet"
    assert main(["generate", "m", str(questions), "-o", str(output)]) == 130
    error = capsys.readouterr().err
    assert error == (
        f"dttrl: interrupted; finished questions are kept in {output}.parts, "
        "run the same command again to go on\n"
    )
    assert main(["analyze", "majority-ratio", "x"]) == 130
    assert capsys.readouterr().err == "dttrl: interrupted; run the same command again\n"


def test_settings_that_a_run_folder_cannot_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(yaml.safe_dump({"method": "ttrl"}))
    (run / "metrics.jsonl").write_text('{"step": 1}\n[1]\n{"step": 2}\n')
    assert "metrics.jsonl: line 2" in one_line(capsys, ["analyze", "majority-ratio", str(run)])
