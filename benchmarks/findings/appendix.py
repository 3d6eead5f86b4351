"""The tables behind docs/results.md, as one page: docs/results-tables.md.

    python benchmarks/findings/appendix.py data/reference/tables

The folder holds what ``figures.sh`` and ``grid.py`` made. ``quoted.md``, beside this script, has the tables
whose runs are not kept; it ends the page. ``--check`` writes nothing and fails where the page is not that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results-tables.md"
QUOTED = Path(__file__).with_name("quoted.md")
SMALL, SMOLLM2 = ("sums-right", "sums-wrong", "products-right", "products-wrong"), ("long-sums", "two-steps")
METHODS = ("ttrl-gt", "ttrl", "ttrl-wsc", "distri-wsc", "distri-gmm")
KEPT = ("ttrl-gt", "ttrl", "distri-gmm")
HEAD = """# The tables behind the findings

Made by `python benchmarks/findings/appendix.py data/reference/tables`; do not edit.
The findings: [results.md](results.md).

Accuracies are avg@16 at temperature 1 unless a table says otherwise. Brackets hold 95 % intervals over
questions and seeds. "Against `ttrl`" is the difference seed by seed. **Bold**: the interval leaves out 0.
Ratio: majority ratio, mean of the first five steps → of the last five. Labels: share of right pseudo-labels
over all steps.
"""
NO_ROLLOUTS = "From the whole rollouts, which the repository does not hold."

Row = dict[str, Any]
Columns = Mapping[str, Callable[[Row], str]]
"""Heading of a column, and what it shows of a row."""


def main() -> None:
    """Write the page, or say that it is not what the tables give."""
    parser = argparse.ArgumentParser(description="Write docs/results-tables.md from the tables of the runs.")
    parser.add_argument("tables", type=Path, help="folder with the Parquet tables")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the page is not up to date"
    )
    options = parser.parse_args()
    page = "\n".join([HEAD, *sections(options.tables), QUOTED.read_text("utf-8")])
    if not options.check:
        PAGE.write_text(page, "utf-8")
    elif PAGE.read_text("utf-8") != page:
        raise SystemExit(f"{PAGE} is not what the tables give; run this again without --check")


def sections(folder: Path) -> Iterator[str]:
    """Yield the sections of the page, each with its tables."""

    def read(*names: str) -> list[Row]:
        return [row for name in names for row in pq.read_table(folder / f"{name}.parquet").to_pylist()]

    yield "## Majority ratio over the steps\n"
    for start in (*SMALL, *SMOLLM2):
        yield over_steps(start, read(f"reward-hacking-{start}"), width=12 if start in SMOLLM2 else 20)
    yield "## Confidences over the steps\n"
    yield shifts(
        read(*(f"shift-{start}" for start in SMALL))
        + read(*(f"distribution-shift.{start}.{method}.0" for start in SMOLLM2 for method in KEPT))
    )
    yield "## Methods\n"
    command = "dttrl analyze compare "
    yield compared(
        read("methods"),
        "Five methods from four starts, 100 steps, three seeds each.",
        command + runs(SMALL, METHODS),
    )
    yield compared(
        read("methods-smollm2"), "SmolLM2, 60 steps, three seeds each.", command + runs(SMOLLM2, KEPT)
    )
    yield "## Trained with another setting\n"
    for start in ("sums-wrong", "products-wrong"):
        for split, name in (("train", "trained"), ("heldout", "held-out")):
            yield compared(
                read(f"ablations-{start}" + ("-heldout" if split == "heldout" else "")),
                f"Ablations from `{start}`, 100 steps, {name} questions.",
                f"{command}'data/reference#{start}.*' --split {split}",
            )
    yield "## The same rollouts, labelled again\n"
    yield relabelled(
        read("label-ablations"),
        "The first run of `ttrl` and of `distri-gmm` from every start, 800 labels per column.",
        "{sums,products}-{right,wrong}",
    )
    yield relabelled(
        read("label-ablations-smollm2"), "SmolLM2: the same, 480 labels per column.", "{long-sums,two-steps}"
    )
    yield "## Labels and confidence over the steps\n"
    yield labels(read("labels"))
    yield "## Choice of a checkpoint without gold answers\n"
    yield regrets(read("checkpoint-choice"))
    yield "## Which confidence tells right from wrong\n"
    yield confidences(read(*(f"confidence.{start}.{method}.0" for start in SMOLLM2 for method in KEPT)))
    yield "## Accuracy against the voting budget\n"
    yield budgets(
        read(*(f"budget.{start}.{measure}" for start in SMOLLM2 for measure in ("topk", "perplexity")))
    )


def over_steps(start: str, rows: list[Row], *, width: int) -> str:
    """Tabulate majority ratio, diversity weight and accuracy of one start: one row per method."""
    last = max(row["step"] for row in rows)

    def block(first: int) -> Callable[[Row], str]:
        inside = range(first, first + width)
        return lambda row: number(fmean(at["majority_ratio"] for at in row["rows"] if at["step"] in inside))

    methods = list(dict.fromkeys(row["method"] for row in rows))
    return table(
        f"`{start}`: majority ratio per block of steps, mean diversity weight, accuracy before → after; "
        "means over the seeds.",
        f"dttrl analyze majority-ratio {runs([start], methods)}",
        {
            "method": code("method"),
            **{f"{first}–{first + width - 1}": block(first) for first in range(1, last + 1, width)},
            "weight": lambda row: number(fmean(at["diversity_weight"] for at in row["rows"] if at["step"])),
            "accuracy": lambda row: (
                f"{number(row['rows'][0]['accuracy'])} → {number(row['rows'][-1]['accuracy'])}"
            ),
        },
        [{"method": method, "rows": [row for row in rows if row["method"] == method]} for method in methods],
    )


def shifts(rows: list[Row]) -> str:
    """Tabulate the blocks of confidences: one row per start, method and block."""
    return table(
        "Confidence of the first run of each: mean and standard deviation per block; shift from the block "
        "before, also in standard deviations of the first block. Settled: this shift and all later ones are "
        "within a tenth of that deviation.",
        "dttrl analyze distribution-shift data/reference#START.METHOD.0",
        {
            "start": code("start"),
            "method": code("method"),
            "steps": steps,
            "mean": plain("mean"),
            "std": plain("std"),
            "shift": interval("shift"),
            "shift / std": plain("relative_shift", 2),
            "settled": lambda row: "yes" if row["settled"] else "",
        },
        rows,
    )


def compared(rows: list[Row], caption: str, command: str) -> str:
    """Tabulate what ``analyze compare`` gives: one row per start, split and method."""
    order = {method: place for place, method in enumerate(METHODS)}
    return table(
        f"{caption} In brackets after the accuracy: lowest and highest seed.",
        command,
        {
            "start": code("start"),
            "questions": lambda row: "trained" if row["split"] == "train" else "held-out",
            "method": code("method"),
            "seeds": lambda row: str(row["runs"]),
            "before": plain("before"),
            "after": lambda row: f"{number(row['after'])} ({number(row['lowest'])}–{number(row['highest'])})",
            "change": interval("change"),
            "against `ttrl`": interval("against", bold=True),
            "maj@16": lambda row: f"{number(row['maj_before'])} → {number(row['maj_after'])}",
            "ratio": lambda row: f"{number(row['ratio_first'], 2)} → {number(row['ratio_last'], 2)}",
            "labels": plain("label_accuracy", 2),
        },
        sorted(rows, key=lambda row: (row["start"], row["split"] != "train", order.get(row["method"], 9))),
    )


def relabelled(rows: list[Row], caption: str, starts: str) -> str:
    """Tabulate label accuracy by variant: one row per variant, one column per run."""
    shown = interval("difference", bold=True, ends=("low", "high"))

    def run(name: str) -> Callable[[Row], str]:
        return lambda row: (
            number(row[name]["accuracy"]) if row["variant"] == "distri-gmm" else shown(row[name])
        )

    names = list(dict.fromkeys(row["run"] for row in rows))
    return table(
        f"{caption} First row: share of right labels; below, the difference from it. Last column: share of "
        f"plain votes for want of a label, mean over the runs. {NO_ROLLOUTS}",
        f"python benchmarks/findings/label_ablations.py OUT/runs/{starts}.{{ttrl,distri-gmm}}.0 -o TABLE",
        {
            "labels": lambda row: str(row["variant"]),
            **{f"`{name}`": run(name) for name in names},
            "fallbacks": lambda row: number(fmean(row[name]["fallbacks"] for name in names), 2),
        },
        pivoted(rows, ["variant"], lambda row: str(row["run"])),
    )


def labels(rows: list[Row]) -> str:
    """Tabulate how good labels were: one row per start, method and block."""
    return table(
        "Three seeds together. Labels: share of right ones, beside that of the plain vote; labels repaired "
        "and broken against the plain vote. Rewards: share of right ones. AUROC of confidence: within a "
        "question, and over all rollouts of a step. Right rollouts among the mixture's positives and "
        "negatives.",
        f"dttrl analyze labels {runs((*SMALL, *SMOLLM2), ('ttrl', 'distri-gmm'))}",
        {
            "start": code("start"),
            "method": lambda row: f"`{row['method'].split()[0]}`",
            "steps": steps,
            "ratio": plain("majority_ratio"),
            "labels": plain("label_accuracy"),
            "plain vote": plain("majority_accuracy"),
            "repaired, broken": lambda row: f"{row['labels_repaired']}, {row['labels_broken']}",
            "rewards": plain("reward_accuracy"),
            "AUROC within": plain("auroc_within", 2),
            "AUROC": plain("auroc", 2),
            "right if positive": plain("right_if_positive", 2),
            "right if negative": plain("right_if_negative", 2),
        },
        rows,
    )


def regrets(rows: list[Row]) -> str:
    """Tabulate what every choice of a checkpoint costs: one row per kind of run and split."""
    names = {
        "first_votes": "first votes", "last": "last", "highest_ratio": "highest ratio",
        "last_or_gain": "last, unless it lost", "most_kept": "most answers kept",
        "least_shared": "fewest shared answers", "fewest_classes": "fewest different answers",
        "most_expected": "highest expected accuracy",
    }  # fmt: skip
    against = interval("against_last", bold=True, digits=2)

    def regret(name: str) -> Callable[[Row], str]:
        return lambda row: number(row[name]["regret"], 2) if name in row else ""

    return table(
        "Regret: points of avg@16 that the chosen step lies below the best of its run, means over the runs. "
        "Runs with labels have two or five steps to choose from, ablations the last and the start. All that "
        "these choices read are the votes on trained questions, the last one the probabilities of their "
        "labels. Against last: first votes, interval over "
        "starts and seeds; three runs are too few for theirs to mean much.",
        "python benchmarks/findings/checkpoint_choice.py data data/reference/tables",
        {
            "runs": lambda row: f"{row['last']['runs']} {row['kind']}",
            "questions": lambda row: "trained" if row["split"] == "train" else "held-out",
            **{shown: regret(name) for name, shown in names.items()},
            "against last": lambda row: against(row["first_votes"]),
        },
        pivoted(rows, ["kind", "split"], lambda row: str(row["choice"])),
    )


def confidences(rows: list[Row]) -> str:
    """Tabulate AUROCs: one row per start, method, measure and region, one column per block."""

    def block(name: str) -> Callable[[Row], str]:
        return lambda row: f"{number(row[name]['auroc_within'], 2)} / {number(row[name]['auroc'], 2)}"

    kind = ["start", "method", "measure", "region"]
    return table(
        "SmolLM2, first run of each: AUROC of confidence against correctness, within a question / over all "
        f"rollouts of a step. Every fifth step, 1,536 rollouts per cell. {NO_ROLLOUTS}",
        "dttrl analyze confidence OUT/runs/START.METHOD.0 --every 5",
        {name: code(name) for name in kind} | {name: block(name) for name in dict.fromkeys(map(steps, rows))},
        pivoted(rows, kind, steps),
    )


def budgets(rows: list[Row]) -> str:
    """Tabulate accuracy against budget: one row per set of rollouts and method, one column per budget."""

    def percent(size: str) -> Callable[[Row], str]:
        return lambda row: "{accuracy:.1%} ({accuracy_low:.0%}–{accuracy_high:.0%})".format(**row[size])

    return table(
        "SmolLM2 before training: 64 questions with 256 rollouts each, means over 64 draws, confidence over "
        f"the whole completion. {NO_ROLLOUTS}",
        "dttrl score ROLLOUTS -o START.MEASURE.parquet --region all --measure MEASURE\n"
        "dttrl analyze budget-scaling START.MEASURE.parquet",
        {
            "rollouts": code("benchmark"),
            "method": code("method"),
            **{str(size): percent(str(size)) for size in sorted({row["budget"] for row in rows})},
        },
        pivoted(rows, ["benchmark", "method"], lambda row: str(row["budget"])),
    )


def table(caption: str, command: str, columns: Columns, rows: Iterable[Row]) -> str:
    """Return a caption, the command and the table in Markdown."""
    lines = [
        list(columns),
        ["---"] * len(columns),
        *([show(row) for show in columns.values()] for row in rows),
    ]
    return "\n".join(
        [caption, "", "```", command, "```", "", *(f"| {' | '.join(line)} |" for line in lines), ""]
    )


def pivoted(rows: Iterable[Row], kind: Sequence[str], column: Callable[[Row], str]) -> list[Row]:
    """Join the rows of a kind to one, which holds each under the name of its column."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in kind)
        found.setdefault(key, dict(zip(kind, key, strict=True)))[column(row)] = row
    return list(found.values())


def runs(starts: Sequence[str], methods: Sequence[str]) -> str:
    """Name runs of the reference as a shell expands them."""
    start = f"{{{','.join(starts)}}}" if len(starts) > 1 else starts[0]
    return f"data/reference#{start}.{{{','.join(methods)}}}.{{0,1,2}}"


def number(value: float | None, digits: int = 3, *, sign: bool = False) -> str:
    """Format as the page does: no zero before the point; nothing for what there is not."""
    if value is None:
        return ""
    text = f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def plain(name: str, digits: int = 3) -> Callable[[Row], str]:
    """Show a number."""
    return lambda row: number(row[name], digits)


def interval(
    name: str, *, bold: bool = False, ends: tuple[str, str] | None = None, digits: int = 3
) -> Callable[[Row], str]:
    """Show a difference with its interval, bold where asked and the interval leaves out 0."""
    low, high = ends or (f"{name}_low", f"{name}_high")

    def show(row: Row) -> str:
        if row[name] is None:
            return ""
        value, least, most = (number(row[key], digits, sign=True) for key in (name, low, high))
        text = f"{value} ({least} to {most})"
        return f"**{text}**" if bold and (row[low] > 0 or row[high] < 0) else text

    return show


def code(name: str) -> Callable[[Row], str]:
    """Show a name."""
    return lambda row: f"`{row[name]}`"


def steps(row: Row) -> str:
    """Show a block of steps."""
    return f"{row['first_step']}–{row['last_step']}"


if __name__ == "__main__":
    main()
