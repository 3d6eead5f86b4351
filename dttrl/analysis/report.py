"""The report of a run: run folder -> ``report.html``, one self-contained page with figure and tables.

Made from ``config.yaml``, ``metrics.jsonl``, ``labels.parquet`` and ``evaluations.parquet``; whatever of
these is missing is left out of the page. The figure of accuracy and majority ratio over steps is also
written beside it as ``accuracy_majority.svg`` and ``.png``. Everything that came from a question or a
model is escaped.
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dttrl.analysis import majority
from dttrl.analysis.accuracy import Accuracy, Estimate, QuestionScore, evaluation_scores, summarize
from dttrl.rng import derive
from dttrl.schemas import EVALUATIONS, LABELS
from dttrl.tables import read_table

REPORT, FIGURE = "report.html", "accuracy_majority"
CURVE_NAMES = ("majority_ratio", "label_accuracy", "diversity_weight", "reward_accuracy", "no_answer_rate")

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; background: #fff; }
.scroll { max-height: 28rem; overflow: auto; } .note { opacity: .7; }
"""


@dataclass(frozen=True)
class SplitChange:
    """One split's accuracy at the first and at the last evaluated step."""

    split: str
    first_step: int
    last_step: int
    first: Accuracy
    last: Accuracy


@dataclass(frozen=True)
class RunSummary:
    """What a run came to: accuracies before and after, and its metrics at the first and the last step."""

    run: Path
    method: str
    steps: int
    seconds: float
    splits: list[SplitChange]
    first: dict[str, float]
    last: dict[str, float]


def summarize_run(run: Path, *, seed: int = 0) -> RunSummary:
    """Summarize a run folder; ``seed`` is that of the bootstrap intervals."""
    config = majority.read_config(run)
    metrics = majority.read_metrics(run)
    changes = []
    scores = _evaluations(run)
    for split in dict.fromkeys(name for _, name in scores):
        steps = [step for step, name in scores if name == split]
        before, after = (
            summarize(scores[step, split], rng=derive(seed, step=step, purpose=f"report:{split}"))
            for step in (steps[0], steps[-1])
        )
        changes.append(SplitChange(split, steps[0], steps[-1], before, after))
    return RunSummary(
        run=run,
        method=str(config.get("method", "unknown")),
        steps=len(metrics),
        seconds=sum(_seconds(record) for record in metrics),
        splits=changes,
        first=_numbers(metrics[0]) if metrics else {},
        last=_numbers(metrics[-1]) if metrics else {},
    )


def write_report(run: Path, *, seed: int = 0) -> Path:
    """Write ``report.html`` and the figure into the run folder and return the page's path.

    A report that is there already is replaced: it holds nothing that the run folder does not.
    """
    summary = summarize_run(run, seed=seed)
    sections = [_heading(summary), _before_after(summary), _step_table(summary)]
    if summary.steps or summary.splits:
        sections.insert(2, _figure(run, summary))
    if (run / majority.LABEL_FILE).is_file():
        sections.append(_label_section(read_table(run / majority.LABEL_FILE, LABELS)))
    sections += [_question_section(_evaluations(run)), _config_section(majority.read_config(run))]
    title = html.escape(f"{run.name}: {summary.method}")
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{''.join(sections)}</body>\n</html>\n"
    )
    _replace(run / REPORT, page.encode("utf-8", "replace"))
    return run / REPORT


def _evaluations(run: Path) -> dict[tuple[int, str], list[QuestionScore]]:
    path = run / majority.EVALUATION_FILE
    return evaluation_scores(read_table(path, EVALUATIONS)) if path.is_file() else {}


def _heading(summary: RunSummary) -> str:
    return (
        f"<h1>{html.escape(summary.run.name)}</h1>\n"
        f"<p>Method <b>{html.escape(summary.method)}</b>, {summary.steps} steps.</p>\n"
    )


def _before_after(summary: RunSummary) -> str:
    if not summary.splits:
        return '<p class="note">No gold answers: nothing to evaluate against.</p>\n'
    rows = []
    for change in summary.splits:
        for name, before, after in _pairs(change):
            gain = after.value - before.value
            rows.append([f"{change.split}: {name}", _estimate(before), _estimate(after), f"{gain:+.3f}"])
        ratios = (change.first.majority_ratio, change.last.majority_ratio)
        if not any(math.isnan(ratio) for ratio in ratios):
            gain = ratios[1] - ratios[0]
            row = [f"{change.split}: majority ratio", f"{ratios[0]:.3f}", f"{ratios[1]:.3f}", f"{gain:+.3f}"]
            rows.append(row)
    steps = summary.splits[0]
    header = ["evaluation", f"step {steps.first_step}", f"step {steps.last_step}", "change"]
    note = '<p class="note">In brackets: 95 % bootstrap interval over questions.</p>\n'
    return "<h2>Before and after</h2>\n" + _table(header, rows) + note


def _pairs(change: SplitChange) -> list[tuple[str, Estimate, Estimate]]:
    n = change.last.n_label
    pairs = [
        (f"avg@{n}", change.first.average, change.last.average),
        (f"maj@{n}", change.first.majority, change.last.majority),
    ]
    both = [k for k in change.last.pass_at if k > 1 and k in change.first.pass_at]
    return pairs + [(f"pass@{k}", change.first.pass_at[k], change.last.pass_at[k]) for k in both]


def _figure(run: Path, summary: RunSummary) -> str:
    from dttrl.analysis import figures

    groups = majority.group_runs([majority.read_run(run)])
    figure = figures.accuracy_majority(groups)
    for kind in ("svg", "png"):
        _replace(run / f"{FIGURE}.{kind}", figures.render(figure, kind))
    svg = figures.render(figure, "svg").decode()
    svg = svg[svg.index("<svg") :]  # the XML declaration may not stand inside a page
    caption = f"Majority ratio and accuracy over {summary.steps} steps."
    return f"<h2>Over the steps</h2>\n<figure>{svg}<figcaption>{caption}</figcaption></figure>\n"


def _step_table(summary: RunSummary) -> str:
    names = [name for name in CURVE_NAMES if name in summary.first and name in summary.last]
    if not names:
        return ""
    rows = [
        [name.replace("_", " "), f"{summary.first[name]:.3f}", f"{summary.last[name]:.3f}"] for name in names
    ]
    return "<h2>Training</h2>\n" + _table(["metric", "first step", "last step"], rows)


def _label_section(labels: pa.Table) -> str:
    total = labels.num_rows
    ties = sum(bool(tie) for tie in labels.column("tie").to_pylist())
    without = sum(label is None for label in labels.column("label").to_pylist())
    rows = [["votes taken", str(total)], ["ties", str(ties)], ["questions without any answer", str(without)]]
    fallbacks = [name for name in labels.column("fallback").to_pylist() if name]
    rows += [[f"plain vote: {name}", str(fallbacks.count(name))] for name in sorted(set(fallbacks))]
    return "<h2>Pseudo-labels</h2>\n" + _table(["", "count"], rows)


def _question_section(scores: Mapping[tuple[int, str], Sequence[QuestionScore]]) -> str:
    sections = []
    for split in dict.fromkeys(name for _, name in scores):
        steps = [step for step, name in scores if name == split]
        first = {score.query_id: score for score in scores[steps[0], split]}
        rows = [
            [score.query_id, _share(first.get(score.query_id)), _share(score), f"{score.majority_ratio:.3f}"]
            for score in scores[steps[-1], split]
        ]
        header = ["question", f"right, step {steps[0]}", f"right, step {steps[-1]}", "majority ratio"]
        table = f'<div class="scroll">{_table(header, rows)}</div>\n'
        sections.append(f"<h2>Questions: {html.escape(split)}</h2>\n{table}")
    return "".join(sections)


def _config_section(config: Mapping[str, Any]) -> str:
    rows = [[str(name), str(value)] for name, value in config.items()]
    return f"<details><summary>Settings</summary>\n{_table(['setting', 'value'], rows)}</details>\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    return f"<table>\n{line('th', header)}{''.join(line('td', row) for row in rows)}</table>\n"


def _share(score: QuestionScore | None) -> str:
    return "-" if score is None else f"{score.n_correct}/{score.n}"


def _estimate(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "-"
    return f"{estimate.value:.3f} ({estimate.low:.3f}-{estimate.high:.3f})"


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _seconds(record: Mapping[str, Any]) -> float:
    return sum(value for name, value in _numbers(record).items() if name.startswith("seconds_"))


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
