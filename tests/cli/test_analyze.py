from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dttrl.analysis.run_summary import summarize_run
from dttrl.data.schemas import EVALUATIONS, ROLLOUTS
from dttrl.data.tables import write_table
from dttrl_cli.app import main


def make_run(folder: Path, ratios: list[float], *, seed: int = 0, method: str = "ttrl") -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"method": method, "seed": seed, "run": str(folder)}))
    lines = [
        json.dumps({"step": i, "majority_ratio": r, "label_accuracy": 0.5}) for i, r in enumerate(ratios, 1)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    rows = [
        {
            "step": step, "split": "train", "query_id": f"q{i}", "source": None, "n": 4,
            "n_correct": 1 + step,
            "maj_correct": step > 0, "majority_ratio": 0.5, "answer": "1", "gold": "1",
        }
        for step in (0, 1, 2)
        for i in range(3)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=EVALUATIONS.fields)
    write_table(folder / "evaluations.parquet", table, EVALUATIONS, metadata={})
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [
        str(make_run(tmp_path / "a", [0.25, 0.5], seed=0)),
        str(make_run(tmp_path / "b", [0.75, 1.0], seed=1)),
        str(make_run(tmp_path / "c", [0.125, 0.25], method="ttrl-gt")),
    ]


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    rows = [
        {"query_id": query, "sample_id": i, "gold": gold, "answer": answer}
        for query, gold in (("a", "1"), ("b", "2"), ("c", None))
        for i, answer in enumerate(["1", "1", "2", None])
    ]
    path = tmp_path / "scored.parquet"
    write_table(path, pa.Table.from_pylist(rows, schema=ROLLOUTS.select(rows[0])), ROLLOUTS, metadata={})
    return path


def test_seeds_are_averaged_with_a_band(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "majority-ratio", *runs]) == 0
    text = capsys.readouterr().out
    assert "ttrl, 2 runs" in text
    assert re.search(r"^ *1 +2 +0\.500 \(0\.250-0\.750\)", text, re.MULTILINE)
    assert re.search(r"^ *2 +0\.250 +0\.500 ", text[text.index("ttrl-gt") :], re.MULTILINE)


def test_tables_figures_and_json_agree(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame, plot = tmp_path / "curve.parquet", tmp_path / "curve.svg"
    assert main(["analyze", "majority-ratio", *runs, "-o", str(frame), "--plot", str(plot), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == pq.read_table(frame).to_pylist()
    assert [(row["method"], row["step"]) for row in rows] == [
        (method, step) for method in ("ttrl", "ttrl-gt") for step in (0, 1, 2)
    ]
    assert rows[1]["majority_ratio"] == 0.5
    assert rows[0]["majority_ratio"] is None
    assert rows[0]["accuracy"] == 0.25
    assert b"<svg" in plot.read_bytes()


@pytest.mark.parametrize("option", [["-o", "t.csv"], ["--plot", "f.png"]])
def test_outputs_are_not_overwritten(
    runs: list[str], tmp_path: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / option[1]
    target.write_text("mine")
    assert main(["analyze", "majority-ratio", *runs, option[0], str(target)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert target.read_text() == "mine"
    assert main(["analyze", "majority-ratio", *runs, option[0], str(target), "--overwrite"]) == 0
    assert target.read_bytes() != b"mine"


def test_an_input_is_never_written(runs: list[str], scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = Path(runs[0]) / "evaluations.parquet"
    for command, target in (
        (["analyze", "accuracy", str(scored)], scored),
        (["analyze", "accuracy", runs[0]], inside),
        (["analyze", "majority-ratio", *runs], inside),
    ):
        before = target.read_bytes()
        assert main([*command, "-o", str(target), "--overwrite"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert target.read_bytes() == before


def test_train_and_analyze_show_the_same_intervals(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {
            "step": step, "split": split, "query_id": f"q{i}", "source": None, "n": 2, "n_correct": i % 3,
            "maj_correct": i % 4 > 0, "majority_ratio": 0.5, "answer": "1", "gold": "1",
        }
        for step in (0, 2)
        for split in ("train", "heldout")
        for i in range(8)
    ]  # fmt: skip
    path = Path(runs[0]) / "evaluations.parquet"
    table = pa.Table.from_pylist(rows, schema=EVALUATIONS.fields)
    write_table(path, table, EVALUATIONS, metadata={}, overwrite=True)
    assert main(["analyze", "accuracy", runs[0], "--json", "-q"]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = {(row["name"].split()[-1], row["step"]): (row["avg_low"], row["maj_low"]) for row in rows}
    expected = {
        (change.split, step): (part.average.low, part.majority.low)
        for change in summarize_run(Path(runs[0])).splits
        for step, part in ((change.first_step, change.first), (change.last_step, change.last))
    }
    assert found == expected
    assert len(set(found.values())) > 1


def test_accuracy_of_scored_rollouts(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "accuracy", str(scored), "--json", "-q"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["questions"], row["without_gold"], row["n_low"], row["n_high"]) == (2, 1, 4, 4)
    assert row["avg"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert row["maj"] == 0.5
    assert (row["pass_1"], row["pass_4"]) == (row["avg"], 1.0)
    assert row["avg_low"] <= row["avg"] <= row["avg_high"]
    assert row["majority_ratio"] == 0.5


def test_accuracy_of_a_run_first_and_last_step(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "accuracy", runs[0], "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["step"], row["avg"], row["maj"]) for row in rows] == [(0, 0.25, 0.0), (2, 0.75, 1.0)]
    assert main(["analyze", "accuracy", runs[0], "--all-steps", "--json"]) == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == [0, 1, 2]


def test_intervals_follow_the_seed(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def result(*args: str) -> str:
        assert main(["analyze", "accuracy", str(scored), "--json", "-q", *args]) == 0
        return capsys.readouterr().out

    assert result("--seed", "1") == result("--seed", "1")
    text = result("--k", "2")
    assert {name for name in json.loads(text)[0] if name.startswith("pass")} == {
        "pass_2", "pass_2_low", "pass_2_high",
    }  # fmt: skip


def test_rollouts_without_gold_have_no_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"query_id": ["q"], "sample_id": [0], "answer": ["1"]}), path)
    assert main(["analyze", "accuracy", str(path)]) == 2
    assert "no column 'gold'" in capsys.readouterr().err
    columns = {"query_id": ["q"], "sample_id": [0], "answer": ["1"], "gold": pa.array([None], pa.string())}
    pq.write_table(pa.table(columns), path)
    assert main(["analyze", "accuracy", str(path)]) == 2
    assert "no question has a gold answer" in capsys.readouterr().err


@pytest.fixture
def benchmarks(tmp_path: Path) -> list[Path]:
    """Two files of three questions with 20 and 9 rollouts each."""
    paths = []
    for name, size in (("rich", 20), ("poor", 9)):
        rng = np.random.default_rng(size)
        rows = [
            {"query_id": f"q{q}", "sample_id": i, "gold": "1", "answer": str(rng.integers(0, 3)),
             "confidence": float(rng.random())}
            for q in range(3)
            for i in range(size)
        ]  # fmt: skip
        paths.append(tmp_path / f"{name}.parquet")
        table = pa.Table.from_pylist(rows, schema=ROLLOUTS.select(rows[0]))
        write_table(paths[-1], table, ROLLOUTS, metadata={})
    return paths


def test_budget_scaling_gives_the_table_the_files_and_the_figure(
    benchmarks: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame, figure = tmp_path / "budget.csv", tmp_path / "budget.svg"
    args = ["analyze", "budget-scaling", *map(str, benchmarks), "--repeats", "4"]
    assert main([*args, "-o", str(frame), "--plot", str(figure)]) == 0
    captured = capsys.readouterr()
    assert re.search(r"^budget +method +rich +poor$", captured.out, re.MULTILINE)
    assert re.search(r"^ *16 +sc +\d+\.\d\d \(.*\) +-$", captured.out, re.MULTILINE)
    assert "left out, not extrapolated: budget 16, 32, 64, 128, 256" in captured.err
    assert len(frame.read_text("utf-8").splitlines()) == 1 + 6 * 3
    assert figure.read_text("utf-8").startswith("<?xml")
    assert main([*args, "-o", str(frame)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*args, "--json", "-q"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {cell["method"] for cell in data["cells"]} == {
        "mob",
        "bon",
        "sc",
        "wsc",
        "deepconf",
        "distrivoting",
    }
    assert main([*args, "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out) == data


def test_budget_scaling_refuses_to_extrapolate(
    benchmarks: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "budget-scaling", str(benchmarks[1]), "--budget", "10"]) == 2
    error = capsys.readouterr().err
    assert "poor: 9" in error
    assert error.count("\n") == 1
