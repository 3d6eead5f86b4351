from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from dttrl.analysis.report import write_report
from dttrl.analysis.run_summary import summarize_run
from dttrl.data.schemas import EVALUATIONS, LABELS
from dttrl.data.tables import write_table
from dttrl.errors import InputError


class Page(HTMLParser):
    """The text of a page, and every address that a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = ("src", "href", "xlink:href", "data", "action")
        self.loads += [value or "" for name, value in attrs if name in names]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def evaluation(step: int, query: str, n_correct: int) -> dict[str, Any]:
    return {
        "step": step, "split": "train", "query_id": query, "source": None, "n": 4, "n_correct": n_correct,
        "maj_correct": n_correct > 2, "majority_ratio": n_correct / 4, "answer": "1", "gold": "1",
    }  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "first"
    folder.mkdir()
    config = {"method": "distri-gmm", "seed": 0, "model": "<script>alert(1)</script>"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    records = [
        {"step": s, "majority_ratio": 0.5 + s / 10, "label_accuracy": 0.25, "seconds_update": 2.0}
        for s in range(3)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = [
        evaluation(0, "a<i>", 1), evaluation(0, "b", 3), evaluation(3, "a<i>", 3), evaluation(3, "b", 4),
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=EVALUATIONS.fields)
    write_table(folder / "evaluations.parquet", table, EVALUATIONS, metadata={})
    label = {
        "step": 0, "query_id": "b", "label": None, "label_class": -1, "gold": "1", "label_correct": False,
        "majority_answer": None, "n": 4, "n_valid": 0, "majority_ratio": 0.0, "label_ratio": 0.0, "tie": True,
        "diversity": 0, "diversity_weight": 1.0, "reward_mean": 0.0, "n_pos": None, "n_neg": None,
        "rejected": None, "fallback": "degenerate",
    }  # fmt: skip
    labels = pa.Table.from_pylist([label], schema=LABELS.fields)
    write_table(folder / "labels.parquet", labels, LABELS, metadata={})
    return folder


def test_a_run_is_summarized_before_and_after(run: Path) -> None:
    summary = summarize_run(run)
    assert (summary.method, summary.steps, summary.seconds) == ("distri-gmm", 3, 6.0)
    (change,) = summary.splits
    assert (change.split, change.first_step, change.last_step) == ("train", 0, 3)
    assert (change.first.average.value, change.last.average.value) == (0.5, 0.875)
    assert (change.first.majority.value, change.last.majority.value) == (0.5, 1.0)
    assert (summary.window, summary.last["majority_ratio"]) == (1, 0.7)


def test_the_page_stands_alone_and_holds_the_numbers(run: Path) -> None:
    path = write_report(run)
    page = Page(path.read_text())
    assert all(address.startswith(("#", "data:")) for address in page.loads)
    assert "svg" in page.tags
    words = " ".join(page.words)
    for expected in ("0.500", "0.875", "+0.375", "avg@4", "maj@4", "plain vote: degenerate", "a<i>", "3/4"):
        assert expected in words, expected
    assert (run / "accuracy_majority.svg").read_bytes().startswith(b"<?xml")
    assert (run / "accuracy_majority.png").read_bytes().startswith(b"\x89PNG")


def test_text_from_outside_is_escaped(run: Path) -> None:
    page = Page(write_report(run).read_text())
    assert "script" not in page.tags
    assert "i" not in page.tags


def test_a_report_can_be_made_again_and_leaves_no_other_file(run: Path) -> None:
    before = {path.name for path in run.iterdir()}
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    new = {"report.html", "accuracy_majority.svg", "accuracy_majority.png"}
    assert {path.name for path in run.iterdir()} == before | new


def test_a_run_without_gold_answers_still_has_a_report(run: Path) -> None:
    (run / "evaluations.parquet").unlink()
    words = " ".join(Page(write_report(run).read_text()).words)
    assert "nothing to evaluate against" in words
    assert "majority ratio at its last step" in words
    assert "0.700" in words


def test_questions_are_shown_with_prompt_gold_and_last_label(run: Path, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    rows = [
        {"id": "a<i>", "prompt": "How much\nis <b>one</b> " + "and one " * 40, "answer": "1"},
        {"id": "b", "prompt": "Changed since the run", "answer": "2"},
    ]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"questions": str(questions)}))
    page = Page(write_report(run).read_text())
    words = " ".join(page.words)
    assert "How much is <b>one</b> and one" in words
    assert "b" not in page.tags[page.tags.index("h1") + 3 :]  # the method's name is the only bold word
    assert "and one " * 20 not in words
    assert "Changed since the run" not in words
    assert "majority ratio, step 3" in words
    assert "none (step 0)" in words
    assert str(questions) in words


def test_the_heading_has_times_and_singular(run: Path) -> None:
    times = ("2026-01-02T03:04:05+00:00", "2026-01-02T03:05:15+00:00")
    records = [
        {"step": i, "time": time, "majority_ratio": 0.5, "seconds_sample": 10.0}
        for i, time in enumerate(times, start=1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    words = " ".join(Page(write_report(run).read_text()).words)
    assert "2 steps, seed 0" in words
    assert "Ended 2026-01-02 03:05 UTC, 0:01:20 after the first step began" in words
    assert "Training steps took 0:00:20" in words
    (run / "metrics.jsonl").write_text(json.dumps(records[0]) + "\n")
    words = " ".join(Page(write_report(run).read_text()).words)
    assert "1 step, seed 0" in words
    assert "the only step" in words
    assert "1 steps" not in words


def test_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run folder"):
        write_report(tmp_path / "absent")
