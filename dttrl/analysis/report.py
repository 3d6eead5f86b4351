"""The report of a run: run folder -> ``report.html``, one self-contained page with figure and tables.

Made from ``config.yaml``, ``metrics.jsonl``, ``labels.parquet``, ``evaluations.parquet`` and, for the text
of the questions, the run's question files; whatever of these is missing is left out of the page. The figure
of accuracy and majority ratio over steps is also written beside it as ``accuracy_majority.svg`` and
``.png``. Everything that came from a question or a model is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dttrl.analysis.majority_ratio import majority_ratios
from dttrl.analysis.report_questions import question_tables
from dttrl.analysis.run_summary import RunSummary, summarize_run
from dttrl.analysis.runs import read_records
from dttrl.data.outputs import replacing
from dttrl.data.schemas import LABELS

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


def write_report(run: Path, *, seed: int = 0) -> Path:
    """Write ``report.html`` and the figure into the run folder and return the page's path.

    A report that is there already is replaced: it holds nothing that the run folder does not.
    """
    summary = summarize_run(run, seed=seed)
    sections = [_heading(summary), _before_after(summary), _step_table(summary)]
    if summary.steps or summary.splits:
        sections.insert(2, _figure(run, summary))
    labels = read_records(run, LABELS)
    if labels is not None:
        sections.append(_label_section(labels))
    for split, header, rows in question_tables(run, summary.settings, labels):
        table = f'<div class="scroll">{_table(header, rows)}</div>\n'
        sections.append(f"<h2>Questions: {html.escape(split)}</h2>\n{table}")
    sections.append(_config_section(summary.settings))
    title = html.escape(f"{run.name}: {summary.method}")
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{''.join(sections)}</body>\n</html>\n"
    )
    _replace(run / REPORT, page.encode("utf-8", "replace"))
    return run / REPORT


def _heading(summary: RunSummary) -> str:
    settings = summary.settings
    method, seed = html.escape(summary.method), html.escape(_word(settings, "seed"))
    lines = [f"Method <b>{method}</b>, {summary.steps_label}, seed {seed}."]
    for name, title in (("model", "Model"), ("questions", "Questions"), ("heldout", "Held-out questions")):
        if settings.get(name) is not None:
            lines.append(f"{title}: {html.escape(_word(settings, name))}.")
    if summary.ended is not None and summary.wall_seconds is not None:
        lines.append(
            f"Ended {summary.ended}, {_clock(summary.wall_seconds)} after the first step began "
            "(evaluations, checkpoints and pauses included)."
        )
    if summary.seconds:
        lines.append(f"Training steps took {_clock(summary.seconds)}.")
    if summary.unspent is not None:
        lines.append(f"Not drawn, as questions were sure before: {summary.unspent}.")
    lines += [html.escape(f"Note: {note}.") for note in summary.notes]
    return f"<h1>{html.escape(summary.run.name)}</h1>\n<p>{'<br>'.join(lines)}</p>\n"


def _before_after(summary: RunSummary) -> str:
    if not summary.splits:
        return '<p class="note">No gold answers: nothing to evaluate against.</p>\n'
    rows = [row for change in summary.splits for row in change.rows(passes=True)]
    steps = summary.splits[0]
    header = ["evaluation", f"step {steps.first_step}", f"step {steps.last_step}", "change"]
    note = '<p class="note">In brackets: 95 % bootstrap interval over questions.</p>\n'
    return "<h2>Before and after</h2>\n" + _table(header, rows) + note


def _figure(run: Path, summary: RunSummary) -> str:
    from dttrl.analysis import figures

    figure = figures.accuracy_majority(majority_ratios([run]))
    for kind in ("svg", "png"):
        _replace(run / f"{FIGURE}.{kind}", figures.render(figure, kind))
    svg = figures.render(figure, "svg").decode()
    svg = svg[svg.index("<svg") :]  # the XML declaration may not stand inside a page
    caption = (
        f"Votes in training and accuracy over {summary.steps_label}. Values of single steps are of different "
        "questions."
    )
    return f"<h2>Over the steps</h2>\n<figure>{svg}<figcaption>{caption}</figcaption></figure>\n"


def _step_table(summary: RunSummary) -> str:
    names = [name for name in CURVE_NAMES if name in summary.first and name in summary.last]
    if not names:
        return ""
    if summary.steps == 1:
        header, columns = ["metric", "the only step"], [summary.overall]
    else:
        span = f"{summary.window} steps" if summary.window > 1 else "step"
        header = ["mean over", f"first {span}", f"last {span}", f"all {summary.steps} steps"]
        columns = [summary.first, summary.last, summary.overall]
    rows = [[name.replace("_", " "), *(f"{column[name]:.3f}" for column in columns)] for name in names]
    return "<h2>Training</h2>\n" + _table(header, rows)


def _label_section(labels: pa.Table) -> str:
    total = labels.num_rows
    ties = sum(bool(tie) for tie in labels.column("tie").to_pylist())
    without = sum(label is None for label in labels.column("label").to_pylist())
    rows = [["votes taken", str(total)], ["ties", str(ties)], ["questions without any answer", str(without)]]
    fallbacks = [name for name in labels.column("fallback").to_pylist() if name]
    rows += [[f"plain vote: {name}", str(fallbacks.count(name))] for name in sorted(set(fallbacks))]
    return "<h2>Pseudo-labels</h2>\n" + _table(["", "count"], rows)


def _config_section(config: Mapping[str, Any]) -> str:
    rows = [[str(name), str(value)] for name, value in config.items()]
    return f"<details><summary>Settings</summary>\n{_table(['setting', 'value'], rows)}</details>\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    return f"<table>\n{line('th', header)}{''.join(line('td', row) for row in rows)}</table>\n"


def _word(settings: Mapping[str, Any], name: str) -> str:
    return str(settings.get(name, "unknown"))


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _replace(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)
