"""``dttrl generate`` against a server: one line for what goes wrong, a note for what must be known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dttrl.data.tables import read_metadata
from dttrl_cli.app import main
from tests.fake_server import Fake, served
from tests.tiny import write_questions

pytest.importorskip("httpx2")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with served(Fake(allowed=5)) as running:
        yield running


def command(fake: Fake, folder: Path, *more: str, model: str = "served") -> list[str]:
    questions = write_questions(folder / "q.jsonl", 2)
    return ["generate", model, str(questions), "-o", str(folder / "r.parquet"), "--samples", "2", *more]


def test_an_address_is_enough(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(fake, tmp_path, "--base-url", fake.url, "--json")) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["sampled"] == 4
    assert captured.err.splitlines()[0] == "backend openai: --base-url names a server"
    assert "gives 5 log-probabilities a token of 20" in captured.err.splitlines()[1]
    metadata = read_metadata(tmp_path / "r.parquet")
    assert metadata["backend_reason"] == "--base-url names a server"
    assert (metadata["model"], metadata["k"], metadata["server"]) == ("served", 5, fake.url)


def test_a_server_is_asked_block_by_block(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--base-url", fake.url, "--samples", "2..20", "--until", "0.999", "--json", "-q")
    assert main(command(fake, tmp_path, *more)) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["unspent"]["budget"] == 40
    assert result["rollouts"] + result["unspent"]["rollouts"] == 40


@pytest.mark.parametrize(
    ("more", "model", "code", "message"),
    [
        (["--backend", "openai"], "served", 2, "--backend openai needs --base-url"),
        (["--base-url", "URL"], "nope", 2, "does not have the model 'nope'; it offers: served, other"),
        (
            ["--base-url", "URL", "--backend", "transformers"],
            "served",
            2,
            "--base-url does nothing with --backend transformers",
        ),
        (["--base-url", "http://127.0.0.1:9/v1"], "served", 1, "is the server running"),
        (["--base-url", "URL", "--concurrency", "0"], "served", 2, "concurrency"),
    ],
)
def test_what_is_wrong_is_one_line(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    more: list[str], model: str, code: int, message: str,
) -> None:  # fmt: skip
    given = [fake.url if word == "URL" else word for word in more]
    assert main(command(fake, tmp_path, "--quiet", *given, model=model)) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
