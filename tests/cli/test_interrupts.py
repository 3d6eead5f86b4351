"""A command that is stopped says how to go on; one that is given nothing shows its help."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dttrl_cli.app import main


def test_a_termination_is_an_interrupt_with_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminate(*_: object, **__: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:  # a second signal, as batch systems send it, must not cut cleaning up short
            os.kill(os.getpid(), signal.SIGTERM)
            (tmp_path / "cleaned").touch()

    monkeypatch.setattr("dttrl.sampling.generation.generate", terminate)
    monkeypatch.setattr("dttrl.training.loop.resume", terminate)
    monkeypatch.setattr("dttrl.analysis.majority_ratio.majority_ratios", terminate)
    before = signal.getsignal(signal.SIGTERM)
    output = tmp_path / "r.parquet"
    assert main(["generate", "m", "q.jsonl", "-o", str(output)]) == 143
    assert capsys.readouterr().err.startswith("dttrl: terminated; finished questions are kept in ")
    assert (tmp_path / "cleaned").exists()
    run = tmp_path / "my runs" / "first"
    (run / "checkpoints" / "step-000002").mkdir(parents=True)
    assert main(["train", "--resume", str(run)]) == 143
    error = capsys.readouterr().err
    assert error == f"dttrl: terminated; go on from the last checkpoint with: dttrl train --resume '{run}'\n"
    assert main(["analyze", "majority-ratio", "x"]) == 143
    assert capsys.readouterr().err == "dttrl: terminated; run the same command again\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("command", [[], ["analyze"]])
def test_without_arguments_the_help_is_shown_and_nothing_else(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    captured = capsys.readouterr()
    assert "Usage: dttrl" in captured.out
    assert captured.err == ""
