"""Figures of the paper from the curves of ``analysis``: the only importer of matplotlib.

Files come out the same byte for byte for the same numbers (SVG ids are salted, dates left out).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dttrl.analysis.blocks import Span
from dttrl.analysis.grouping import title as group_title
from dttrl.analysis.label_quality import LabelQuality
from dttrl.analysis.majority_ratio import TITLES, known_measures
from dttrl.analysis.shift import ShiftCurve
from dttrl.data.outputs import check_new_file, replacing
from dttrl.errors import InputError

SUFFIXES = (".svg", ".png", ".pdf")

# Okabe and Ito's palette: told apart by colour-blind readers.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
# Each panel's measures with their line styles.
_PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("votes in training", {"majority_ratio": "-", "label_accuracy": "--"}),
    (
        "accuracy",
        {"accuracy": "-", "maj_accuracy": "--", "heldout_accuracy": "-.", "heldout_maj_accuracy": ":"},
    ),
)
_STYLE: dict[str, Any] = {
    "svg.hashsalt": "dttrl",
    "svg.fonttype": "path",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


@matplotlib.rc_context(_STYLE)
def accuracy_majority(table: pd.DataFrame) -> Figure:
    """Draw the votes in training (left) and the accuracy of each split (right) over steps.

    The right panel is left out where no group has gold answers. One group: a colour a split, named in the
    legend. Several: a colour a group, and the line style says which measure and split it is. Bands: lowest
    to highest run of a group.
    """
    measures = known_measures(table)
    panels = [panel for panel in _PANELS if panel is _PANELS[0] or set(panel[1]) & set(measures)]
    groups = list(table.groupby("method", sort=False))
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharex=True, squeeze=False)[0]
    for axes, (panel_title, styles) in zip(all_axes, panels, strict=True):
        for index, (_, group) in enumerate(groups):
            _lines(axes, group, styles, None if len(groups) == 1 else _COLORS[index % len(_COLORS)])
        gray = [(TITLES[name], style) for name, style in styles.items() if name in measures]
        _dress(axes, panel_title, [] if len(groups) == 1 else gray)
    if len(groups) == 1:
        figure.suptitle(_group_title(groups[0][1]), fontsize=10)
    return figure


@matplotlib.rc_context(_STYLE)
def budget_panels(cells: pd.DataFrame) -> Figure:
    """Draw accuracy against voting budget, a panel a benchmark, a colour a method; bands are intervals."""
    styles = _line_styles(cells["method"])
    figure, panels = _grid(cells["benchmark"].nunique(), width=3.4)
    for axes, (name, benchmark) in zip(panels, cells.groupby("benchmark", sort=False), strict=True):
        for method, line in benchmark.sort_values("budget", kind="stable").groupby("method", sort=False):
            color, style = styles[method]
            axes.plot(
                line["budget"], 100 * line["accuracy"], color=color, linestyle=style, marker="o",
                markersize=3, linewidth=1.5, label=method,
            )  # fmt: skip
            low, high = 100 * line["accuracy_low"], 100 * line["accuracy_high"]
            axes.fill_between(line["budget"], low, high, color=color, alpha=0.06, linewidth=0)
        budgets = sorted(benchmark["budget"].unique().tolist())
        axes.set_xscale("log", base=2)
        axes.set_xticks(budgets, [str(budget) for budget in budgets])
        axes.minorticks_off()
        axes.set_xlabel("voting budget")
        axes.set_title(name, fontsize=9)
    panels[0].set_ylabel("accuracy (%)")
    panels[0].legend(fontsize=7)
    return figure


@matplotlib.rc_context(_STYLE)
def shift_panels(curves: Sequence[ShiftCurve], *, bins: int = 80) -> Figure:
    """Draw the distribution of each block (a panel a group, light to dark) and the shifts of all groups."""
    figure, panels = _grid(len(curves) + 1)
    for axes, curve in zip(panels, curves, strict=False):
        low, high = np.quantile(np.concatenate(curve.values), [0.002, 0.998]).tolist()
        edges = np.linspace(low, high, bins + 1)
        colors = matplotlib.colormaps["viridis_r"](np.linspace(0.1, 1.0, len(curve.values)))
        spans = map(Span, curve.table["first_step"], curve.table["last_step"])
        for span, value_N, color in zip(spans, curve.values, colors, strict=True):
            density, _ = np.histogram(value_N, edges)
            height = density / (value_N.size * np.diff(edges))
            axes.stairs(height, edges, color=color, linewidth=1.2, label=f"steps {span}")
        axes.set(xlabel="confidence", ylabel="density")
        axes.set_title(curve.group.title, fontsize=8)
        axes.legend(fontsize=6)
    axes = panels[-1]
    for curve, color in zip(curves, cycle(_COLORS), strict=False):
        axes.plot(
            "last_step", "relative_shift", data=curve.table[1:], color=color, marker="o", markersize=3,
            label=curve.group.title,
        )  # fmt: skip
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.set(xlabel="step", ylabel="shift (standard deviations)")
    axes.set_title("shift from the block before", fontsize=9)
    if any(len(curve.values) > 1 for curve in curves):
        axes.legend(fontsize=6)
    return figure


@matplotlib.rc_context(_STYLE)
def label_panels(measured: Sequence[LabelQuality]) -> Figure:
    """Draw label accuracy (solid) with reward accuracy (dashed), AUROC within questions, calibrations."""
    calibrations = {
        "calibration of the mixture": ("P(positive | confidence)", [q.calibration for q in measured]),
        "calibration of the labels": ("probability of the label", [q.label_calibration for q in measured]),
    }
    known = {title: found for title, found in calibrations.items() if any(map(len, found[1]))}
    figure, panels = _grid(2 + len(known))
    lines = ((0, "label_accuracy", "-"), (0, "reward_accuracy", "--"), (1, "auroc_within", "-"))
    for quality, color in zip(measured, cycle(_COLORS), strict=False):
        for panel, name, style in lines:
            panels[panel].plot(
                quality.blocks["last_step"], quality.blocks[name], style, color=color, marker="o",
                markersize=3, label=quality.group.title if style == "-" else None,
            )  # fmt: skip
    _dress(panels[0], "labels", [("label accuracy", "-"), ("reward accuracy", "--")])
    _dress(panels[1], "AUROC of confidence within questions", [])
    panels[1].axhline(0.5, color="black", linewidth=0.8)
    for axes, (heading, (xlabel, tables)) in zip(panels[2:], known.items(), strict=True):
        for dots, color in zip(tables, cycle(_COLORS), strict=False):
            axes.plot("probability", "right", data=dots, color=color, marker="o", markersize=3)
        axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
        axes.set(xlabel=xlabel, ylabel="share right", ylim=(-0.02, 1.02))
        axes.set_title(heading, fontsize=9)
    return figure


@matplotlib.rc_context(_STYLE)
def separation_panels(found: pd.DataFrame) -> Figure:
    """Draw the AUROC within questions over steps: a panel a group and source, a colour a confidence."""
    places = list(found.groupby(["method", "questions", "start", "source"], sort=False))
    styles = _line_styles(found["measure"] + ", " + found["region"])
    figure, panels = _grid(len(places))
    for axes, ((*names, source), place) in zip(panels, places, strict=True):
        for kind, (color, style) in styles.items():
            line = place[place["measure"] + ", " + place["region"] == kind]
            axes.plot(
                line["last_step"], line["auroc_within"], color=color, linestyle=style, marker="o",
                markersize=3, label=kind,
            )  # fmt: skip
        axes.axhline(0.5, color="black", linewidth=0.8)
        _dress(axes, f"{group_title(*names)}: {source}", [])
    return figure


@matplotlib.rc_context(_STYLE)
def comparison_panels(table: pd.DataFrame) -> Figure:
    """Draw avg@n after training, a panel a question set, start and split; a line marks where it began."""
    places = list(table.groupby(["questions", "start", "split"], sort=False))
    figure, panels = _grid(len(places), height=1.2 + 0.24 * max(len(shown) for _, shown in places), width=4.8)
    for axes, (place, shown) in zip(panels, places, strict=True):
        color = _COLORS[0 if place[2] == "train" else 1]
        for height, row in enumerate(shown.itertuples()):
            axes.plot([row.after_low, row.after_high], [height, height], color=color, linewidth=1.5)
            axes.plot([row.after], [height], "o", color=color, markersize=4)
        axes.axvline(float(np.mean(shown["before"].to_list())), color="gray", linestyle="--")
        axes.set_yticks(range(len(shown)), shown["method"].to_list(), fontsize=7)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel(f"avg@{shown['n'].iloc[0]} (dashed: before)")
        axes.set_title(", ".join(place), fontsize=8)
    return figure


def _line_styles(names: pd.Series) -> dict[str, tuple[str, str]]:
    """Return a colour and a dash for each name, in order of first appearance."""
    return {
        name: (_COLORS[index % len(_COLORS)], _DASHES[index // len(_COLORS) % len(_DASHES)])
        for index, name in enumerate(names.unique())
    }


def _grid(count: int, *, height: float = 3.2, width: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``count`` panels, three in a row."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(1.0 + width * columns, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def save(figure: Figure, path: Path, *, overwrite: bool = False) -> None:
    """Write the figure as SVG, PNG or PDF by the ending of ``path``, whole or not at all."""
    check_figure(path, overwrite=overwrite)
    with replacing(path) as temporary:
        temporary.write_bytes(render(figure, path.suffix.lower().lstrip(".")))


def render(figure: Figure, kind: str) -> bytes:
    """Return the figure as the bytes of an ``svg``, ``png`` or ``pdf`` file."""
    buffer = io.BytesIO()
    dates: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": "dttrl"},
        "pdf": {"CreationDate": None},
        "png": {"Software": None},
    }
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format=kind, dpi=150, metadata=dates[kind])
    return buffer.getvalue()


def check_figure(path: Path, *, overwrite: bool) -> None:
    """Raise before any work when the figure could not be written to ``path``."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: unknown kind of figure, name it *.svg, *.png or *.pdf")
    check_new_file(path, overwrite=overwrite)


def _group_title(group: pd.DataFrame) -> str:
    name, runs = group["method"].iloc[0], group["runs"].max()
    return f"{name} ({runs} runs)" if runs > 1 else str(name)


def _lines(axes: Axes, group: pd.DataFrame, styles: Mapping[str, str], color: str | None) -> None:
    """Draw the measures of a group in its colour or, where it has none, in one a split, each labelled."""
    label: str | None = _group_title(group)
    for name in known_measures(group):
        if name not in styles:
            continue
        line = group[group[name].notna()]
        chosen = color or _COLORS[1 if name.startswith("heldout") else 0]
        axes.plot(
            line["step"], line[name], color=chosen, linestyle=styles[name], markersize=3,
            marker="o" if len(line) < 12 else None, linewidth=1.5 if styles[name] == "-" else 1.0,
            label=label if color else TITLES[name],
        )  # fmt: skip
        if group["runs"].max() > 1:
            low, high = line[f"{name}_low"], line[f"{name}_high"]
            axes.fill_between(line["step"], low, high, color=chosen, alpha=0.15, linewidth=0)
        label = None  # the legend has a group once


def _dress(axes: Axes, title: str, gray: Sequence[tuple[str, str]]) -> None:
    axes.set_xlabel("step")
    axes.set_ylim(-0.02, 1.02)
    # min_n_ticks: with the default of 2, a range with a single whole number gets fractions of steps.
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_title(title, fontsize=9)
    for label, style in gray:
        axes.plot([], [], color="gray", linestyle=style, label=label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)
