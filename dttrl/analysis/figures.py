"""Figures of the paper from the curves of ``analysis``: the only importer of matplotlib.

Files come out the same byte for byte for the same numbers (SVG ids are salted, dates left out).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dttrl.analysis.budget import Cell
from dttrl.analysis.majority import TITLES, GroupCurve
from dttrl.errors import InputError
from dttrl.outputs import check_new_file, replacing

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


def accuracy_majority(groups: Sequence[GroupCurve], *, title: str | None = None) -> Figure:
    """Draw the votes in training (left) and the accuracy of each split (right) over steps.

    The right panel is left out where no group has gold answers. One group: a colour a split, named in the
    legend. Several: a colour a group, and the line style says which measure and split it is. Bands: lowest
    to highest run of a group.
    """
    votes, accuracy = _PANELS
    panels = [votes, accuracy] if any(g.knows(name) for g in groups for name in accuracy[1]) else [votes]
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
        all_axes = figure.subplots(1, len(panels), sharex=True, squeeze=False)[0]
        for axes, (panel_title, styles) in zip(all_axes, panels, strict=True):
            for index, group in enumerate(groups):
                _lines(axes, group, styles, None if len(groups) == 1 else _COLORS[index % len(_COLORS)])
            known = [name for name in styles if any(group.knows(name) for group in groups)]
            _dress(axes, panel_title, [] if len(groups) == 1 else [(TITLES[n], styles[n]) for n in known])
        heading = title or (_group_title(groups[0]) if len(groups) == 1 else None)
        if heading:
            figure.suptitle(heading, fontsize=10)
        return figure


def budget_panels(cells: Sequence[Cell]) -> Figure:
    """Draw accuracy against voting budget, a panel a benchmark, a colour a method; bands are intervals."""
    names = list(dict.fromkeys(cell.benchmark for cell in cells))
    methods = list(dict.fromkeys(cell.method for cell in cells))
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(1.0 + 3.4 * columns, 3.2 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, name in zip(panels, names, strict=False):
            for index, method in enumerate(methods):
                line = [cell for cell in cells if (cell.benchmark, cell.method) == (name, method)]
                if line:
                    _budget_line(
                        axes, line, method, _COLORS[index % len(_COLORS)], _DASHES[index // len(_COLORS)]
                    )
            budgets = sorted({cell.budget for cell in cells if cell.benchmark == name})
            axes.set_xscale("log", base=2)
            axes.set_xticks(budgets, [str(budget) for budget in budgets])
            axes.minorticks_off()
            axes.set_xlabel("voting budget")
            axes.set_title(name, fontsize=9)
        for axes in panels[len(names) :]:
            axes.set_visible(False)
        panels[0].set_ylabel("accuracy (%)")
        panels[0].legend(fontsize=7)
        return figure


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


def _group_title(group: GroupCurve) -> str:
    return f"{group.label} ({len(group.runs)} runs)" if len(group.runs) > 1 else group.label


def _lines(axes: Axes, group: GroupCurve, styles: Mapping[str, str], color: str | None) -> None:
    """Draw the measures of a group in its colour or, where it has none, in one a split, each labelled."""
    label: str | None = _group_title(group)
    for name, style in styles.items():
        if not group.knows(name):
            continue
        if color is None:
            _line(axes, group, name, _COLORS[1 if name.startswith("heldout") else 0], style, TITLES[name])
        else:
            _line(axes, group, name, color, style, label)
            label = None  # the legend has a group once


def _budget_line(axes: Axes, line: Sequence[Cell], label: str, color: str, style: str) -> None:
    line = sorted(line, key=lambda cell: cell.budget)
    budgets = [cell.budget for cell in line]
    mean, low, high = (
        [100 * getattr(cell.accuracy, name) for cell in line] for name in ("value", "low", "high")
    )
    axes.plot(
        budgets, mean, color=color, linestyle=style, marker="o", markersize=3, linewidth=1.5, label=label
    )
    axes.fill_between(budgets, low, high, color=color, alpha=0.06, linewidth=0)


def _line(axes: Axes, group: GroupCurve, name: str, color: str, style: str, label: str | None) -> None:
    known_S = np.isfinite(group.mean[name])
    step_S = group.step_S[known_S]
    marker = "o" if step_S.size < 12 else None
    axes.plot(
        step_S, group.mean[name][known_S], color=color, linestyle=style, marker=marker, markersize=3,
        linewidth=1.5 if style == "-" else 1.0, label=label,
    )  # fmt: skip
    if len(group.runs) > 1:
        low_S, high_S = group.low[name][known_S], group.high[name][known_S]
        axes.fill_between(step_S, low_S, high_S, color=color, alpha=0.15, linewidth=0)


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
