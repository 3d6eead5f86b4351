from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dttrl.data.schemas import EVALUATIONS, LABELS, ROLLOUTS
from dttrl.data.tables import write_table
from dttrl_cli.app import main


def make_run(folder: Path, *, method: str, seed: int, gain: int, rollouts: bool = True) -> Path:
    folder.mkdir()
    settings = {"method": method, "seed": seed, "model": "models/start", "questions": "sums.jsonl"}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    lines = [
        json.dumps({"step": step, "majority_ratio": 0.5, "label_accuracy": 0.75, "auroc_within": 0.6})
        for step in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    rows = [
        {
            "step": step, "split": split, "query_id": f"q{i}", "source": "sums", "n": 4,
            "n_correct": 1 + (gain if step else 0), "maj_correct": bool(step), "majority_ratio": 0.5,
            "answer": "1", "gold": "1",
        }
        for step in (0, 2)
        for split in ("train", "heldout")
        for i in range(3)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=EVALUATIONS.fields)
    write_table(folder / "evaluations.parquet", table, EVALUATIONS, metadata={})
    (folder / "rollouts").mkdir()
    for step in (1, 2) if rollouts else ():
        drawn: list[dict[str, Any]] = [
            {
                "step": step, "query_id": "q0", "sample_id": i, "source": "sums", "prompt": "?", "gold": "1",
                "text": "x", "finish_reason": "stop", "num_tokens": 1, "token_offset": [0],
                "token_confidence": [float(i)], "answer": str(1 + i % 2), "answer_class": i % 2,
                "confidence": step + float(i), "reward": float(i % 2 == 0),
            }
            for i in range(4)
        ]  # fmt: skip
        table = pa.Table.from_pylist(drawn, schema=ROLLOUTS.select(drawn[0]))
        write_table(folder / "rollouts" / f"step-{step:06d}.parquet", table, ROLLOUTS, metadata={})
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [
        str(make_run(tmp_path / "a", method="ttrl", seed=0, gain=1)),
        str(make_run(tmp_path / "b", method="ttrl", seed=1, gain=2)),
        str(make_run(tmp_path / "c", method="ttrl-gt", seed=0, gain=3)),
    ]


@pytest.mark.parametrize("command", ["distribution-shift", "labels", "confidence", "compare"])
def test_table_figure_and_json_agree(
    command: str, runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--measure", "topk"] if command == "confidence" else []
    table, plot = tmp_path / "t.parquet", tmp_path / "f.svg"
    made = ["-o", str(table), "--plot", str(plot)]
    assert main(["analyze", command, *runs, *more, *made, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    rows = said["rows"] if command == "labels" else said
    assert rows == pq.read_table(table).to_pylist()
    assert {row["method"] for row in rows} == {"ttrl", "ttrl-gt"}
    assert plot.read_bytes().startswith(b"<?xml")
    assert main(["analyze", command, *runs, *more, *made]) == 2
    assert "exists" in capsys.readouterr().err


def test_compare_prints_a_table_a_split(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "compare", *runs]) == 0
    text = capsys.readouterr().out
    assert "sums, from start: 3 train questions, avg@4" in text
    line = next(line for line in text.splitlines() if line.lstrip().startswith("ttrl-gt"))
    assert "1.000 (1.000-1.000)" in line
    assert "+0.750" in line
    assert "+0.500 (+0.500 to +0.500)" in line  # against the run of ttrl with the same seed


def test_compare_can_show_one_split(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "compare", *runs, "--split", "heldout", "--json"]) == 0
    assert {row["split"] for row in json.loads(capsys.readouterr().out)} == {"heldout"}
    assert main(["analyze", "compare", *runs, "--split", "dev"]) == 2
    assert "--split dev: the runs evaluated heldout, train" in capsys.readouterr().err


def test_compare_says_when_nothing_stands_against_the_baseline(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "compare", *runs, "--baseline", "none"]) == 0
    assert "called 'none'" in capsys.readouterr().err


def test_shift_prints_blocks_and_whether_they_settle(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "distribution-shift", runs[2], "--block", "1"]) == 0
    text = capsys.readouterr().out
    assert "not settled" in text
    assert "1.000 (1.000-1.000)" in text
    assert main(["analyze", "distribution-shift", runs[2], "--block", "1", "--tolerance", "1"]) == 0
    assert "settled from steps 2" in capsys.readouterr().out


def test_labels_show_counts_of_rollouts(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "labels", runs[2]]) == 0
    assert "4/0/0/4" in capsys.readouterr().out


def test_labels_show_the_calibration_of_their_probabilities(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = dict.fromkeys(("majority_answer", "n_pos", "n_neg", "rejected", "fallback"))
    row = nothing | {
        "step": 1, "query_id": "q0", "label": "1", "label_class": 0, "gold": "1", "label_correct": True,
        "n": 4, "n_valid": 4, "majority_ratio": 0.5, "label_ratio": 0.5, "tie": False, "diversity": 2,
        "diversity_weight": 1.0, "reward_mean": 0.5, "label_probability": 0.75,
    }  # fmt: skip
    table = pa.Table.from_pylist([row], schema=LABELS.fields)
    write_table(Path(runs[2]) / "labels.parquet", table, LABELS, metadata={})
    assert main(["analyze", "labels", runs[2]]) == 0
    text = capsys.readouterr().out
    assert "Calibration of the labels (mean distance 0.250, Brier score 0.062)" in text
    assert re.search(r"^0\.70-0\.80 +1 +0\.750 +1\.000$", text, re.MULTILINE)
    assert main(["analyze", "labels", runs[2], "--json"]) == 0
    (bin_,) = json.loads(capsys.readouterr().out)["label_calibration"]
    assert (bin_["n"], bin_["probability"], bin_["right"]) == (1, 0.75, 1.0)


def test_what_a_run_has_not_kept_is_not_counted_as_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = make_run(tmp_path / "bare", method="ttrl", seed=0, gain=1, rollouts=False)
    assert main(["analyze", "labels", str(bare)]) == 0
    out = capsys.readouterr().out
    assert "0.750" in out
    assert "0/0" not in out


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = make_run(tmp_path / "bare", method="ttrl", seed=0, gain=1, rollouts=False)
    for command, expected in (
        ("distribution-shift", "--keep-rollouts"),
        ("confidence", "--keep-rollouts"),
    ):
        assert main(["analyze", command, str(bare)]) == 2
        err = capsys.readouterr().err
        assert expected in err
        assert err.count("\n") == 1
    assert main(["analyze", "confidence", str(bare), "--measure", "luck"]) == 2
    assert "--measure luck: not one of topk" in capsys.readouterr().err
    assert main(["analyze", "compare", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
