"""Puts the tables of docs/latent.md where the page has a place for them.

    python benchmarks/findings/latent_page.py data/reference/tables

A place begins with ``<!-- table NAME -->`` and ends with ``<!-- end -->``; NAME is one of :data:`PLACES`.
``--check`` writes nothing and fails where the page is not what the tables give.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from appendix import Row, code, interval, number, pivoted, plain, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "latent.md"
PLACE = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
RUN = "sh benchmarks/findings/latent.sh WORK FILES"
TRAINED = "python benchmarks/findings/latent_training.py data/latent data/reference/tables"
SHOWN = ("sc", "distrivoting", "latent")
"""Strategies of the table of budgets."""

PUBLIC = {
    "brumo2025_r1-0528-qwen3-8b_deepconf_b64": "BRUMO 2025, R1-0528-Qwen3-8B",
    "math500x100_r1-distill-llama-8b_atts_n64": "MATH-500, R1-Distill-Llama-8B",
    "lastletters_gpt3.5_esc_n40": "last letters, GPT-3.5",
}
"""Rollouts that others published, by file."""

Read = Callable[[str], list[Row]]


def main() -> None:
    """Write the page, or say that it is not what the tables give."""
    parser = argparse.ArgumentParser(description="Fill the tables of docs/latent.md.")
    parser.add_argument("tables", type=Path, help="folder with the Parquet tables")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not that")
    options = parser.parse_args()
    old = PAGE.read_text("utf-8")
    new = filled(old, options.tables)
    if not options.check:
        PAGE.write_text(new, "utf-8")
    elif old != new:
        raise SystemExit(f"{PAGE} is not what the tables give; run this again without --check")


def filled(page: str, folder: Path) -> str:
    """Return the page with the tables of a folder in their places."""

    def read(name: str) -> list[Row]:
        rows: list[Row] = pq.read_table(folder / f"{name}.parquet").to_pylist()
        return rows

    return PLACE.sub(lambda place: f"{place[1]}{PLACES[place[2]](read)}{place[3]}", page)


def strategies(read: Read) -> str:
    """Tabulate accuracy with all rollouts: one row per file, one column per strategy."""
    rows = read("latent-offline")
    most = {row["file"]: row["budget"] for row in rows}
    methods = list(dict.fromkeys(row["method"] for row in rows))
    joined = pivoted(
        [row for row in rows if row["budget"] == most[row["file"]]],
        ["file", "questions", "budget"],
        lambda row: str(row["method"]),
    )
    return table(
        "Questions right with all rollouts of a file, one fit per file.",
        RUN,
        {
            "rollouts": _file,
            "questions × rollouts": lambda row: f"{row['questions']} × {row['budget']}",
            **{f"`{name}`": _right(name) for name in methods},
        },
        joined,
    )


def budgets(read: Read) -> str:
    """Tabulate accuracy by budget: one row per file and strategy."""
    rows = [row for row in read("latent-offline") if row["method"] in SHOWN]
    sizes = sorted({row["budget"] for row in rows})
    return table(
        "Accuracy in % by voting budget, means over the draws; one fit per draw.",
        RUN,
        {
            "rollouts": _file,
            "method": code("method"),
            **{str(size): _percent(str(size)) for size in sizes},
        },
        pivoted(rows, ["file", "method"], lambda row: str(row["budget"])),
    )


def calibration(read: Read) -> str:
    """Tabulate Brier score and calibration error: one row per file, at three budgets."""
    rows = [row for row in read("latent-offline") if row["method"] in ("sc", "latent")]
    last = {row["file"]: row["budget"] for row in rows}
    kept = [row for row in rows if row["budget"] in {8, 64, last[row["file"]]}]
    joined = pivoted(kept, ["file", "questions", "budget"], lambda row: str(row["method"]))
    return table(
        "How well probabilities tell right answers: Brier score and expected calibration error (ten bins) of "
        "the posterior, and of the majority ratio taken as a probability. Expected: accuracy that the "
        "posterior expects, beside what it is. Equal mass: the error over ten bins of as many votes each. "
        "If exact: the error over bins of equal width that exactly right probabilities would have on so many "
        "questions.",
        RUN,
        {
            "rollouts": _file,
            "questions": lambda row: str(row["questions"]),
            "budget": lambda row: str(row["budget"]),
            "expected, accuracy": lambda row: (
                f"{number(row['latent']['expected'])}, {number(row['latent']['accuracy'])}"
            ),
            "Brier": _of("latent", "brier"),
            "calibration error": _of("latent", "calibration_error"),
            "equal mass": _of("latent", "calibration_error_mass"),
            "if exact": _of("latent", "calibration_error_least"),
            "Brier of the ratio": _of("sc", "brier"),
            "calibration error of the ratio": _of("sc", "calibration_error"),
        },
        joined,
    )


def ablation(read: Read) -> str:
    """Tabulate the parts of the model: one row per file, one column per variant."""
    rows = read("latent-ablation")
    variants = list(dict.fromkeys(row["variant"] for row in rows))

    def cell(name: str) -> Callable[[Row], str]:
        return lambda row: (
            f"{_share(row[name]['accuracy'])}, {number(row[name]['calibration_error'], 2)}"
            if name in row
            else ""
        )

    return table(
        "Accuracy in % and expected calibration error with 64 rollouts of each question (or as many as there "
        "are), means over the draws.",
        RUN,
        {"rollouts": _file, **{name: cell(name) for name in variants}},
        pivoted(rows, ["file"], lambda row: str(row["variant"])),
    )


def stopping(read: Read) -> str:
    """Tabulate stopping when sure: one row per file and threshold."""
    rows = read("latent-stopping")
    return table(
        "Stopping a question when its posterior stays above the threshold, simulated on complete rollouts, "
        "means over orders of them. Rollouts and tokens: shares of what all would be.",
        RUN,
        {
            "rollouts": _file,
            "samples": lambda row: str(row["samples"]).replace("..", " to "),
            "until": lambda row: number(row["until"], 3).removesuffix("0"),
            "`sc`, all": plain("plain"),
            "`latent`, all": plain("accuracy"),
            "`latent`, stopped": plain("accuracy_stopped"),
            "questions stopped": plain("stopped", 2),
            "rollouts drawn": plain("rollouts", 2),
            "tokens drawn": plain("tokens", 2),
        },
        rows,
    )


def training(read: Read) -> str:
    """Tabulate training with each variant's labels against ``ttrl``: one row per start and variant."""
    rows = pivoted(read("latent-training"), ["start", "method", "runs"], lambda row: str(row["split"]))

    def of(split: str, show: Callable[[Row], str]) -> Callable[[Row], str]:
        return lambda row: show(row[split])

    after, against = plain("after"), interval("against", bold=True)
    return table(
        "avg@16 after training; against `ttrl`: the difference seed by seed, with its 95 % interval over "
        "questions and seeds. **Bold**: the interval leaves out 0. One seed: over questions alone. "
        "Labels, majorities: share of right ones over all steps.",
        TRAINED,
        {
            "start": code("start"),
            "variant": code("method"),
            "seeds": lambda row: str(row["runs"]),
            "trained": of("train", after),
            "trained, against `ttrl`": of("train", against),
            "held-out": of("heldout", after),
            "held-out, against `ttrl`": of("heldout", against),
            "labels": of("train", plain("label_accuracy")),
            "majorities": of("train", plain("majority_accuracy")),
        },
        rows,
    )


def labels(read: Read) -> str:
    """Tabulate the calibration of labels in training: one row per start and way that labels count."""
    rows = pivoted(read("latent-labels"), ["start", "counts", "runs"], lambda row: str(row["steps"]))
    ends = list(dict.fromkeys(row["steps"] for row in read("latent-labels")))

    def of(end: str, show: Callable[[Row], str]) -> Callable[[Row], str]:
        return lambda row: show(row[end])

    def expected(row: Row) -> str:
        return f"{number(row['expected'])}, {number(row['right'])}"

    return table(
        "What the probabilities of labels expect in training, beside the share of right labels; Brier score "
        "and expected calibration error (ten bins). A label counts in full, or by its probability "
        "(`--weigh-labels`); variants with the diversity penalty and without are one row.",
        TRAINED,
        {
            "start": code("start"),
            "labels count": lambda row: str(row["counts"]),
            "runs": lambda row: str(row["runs"]),
            **{
                f"{end}: {name}": of(end, show)
                for end in ends
                for name, show in (
                    ("expected, right", expected),
                    ("Brier", plain("brier")),
                    ("calibration error", plain("calibration_error")),
                )
            },
        },
        rows,
    )


PLACES: dict[str, Callable[[Read], str]] = {
    "strategies": strategies,
    "budgets": budgets,
    "calibration": calibration,
    "ablation": ablation,
    "stopping": stopping,
    "training": training,
    "labels": labels,
}
"""The tables that the page may have."""


def _file(row: Row) -> str:
    """Show which rollouts: a public file by what it is, others by their name."""
    return PUBLIC.get(row["file"], f"`{row['file']}`")


def _right(name: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        if name not in row:
            return ""
        others = [cell["accuracy"] for cell in row.values() if isinstance(cell, dict)]
        text = f"{row[name]['accuracy'] * row['questions']:.0f}"
        return f"**{text}**" if row[name]["accuracy"] == max(others) else text

    return show


def _percent(size: str) -> Callable[[Row], str]:
    return lambda row: _share(row[size]["accuracy"]) if size in row else ""


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _of(method: str, name: str) -> Callable[[Row], str]:
    return lambda row: number(row[method][name])


if __name__ == "__main__":
    main()
