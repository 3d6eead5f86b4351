"""Figures of the paper from the curves of ``analysis``: the only importer of matplotlib.

Files come out the same byte for byte for the same numbers (SVG ids are salted, dates left out).
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dttrl.analysis.budget import Cell
from dttrl.analysis.majority import GroupCurve
from dttrl.errors import InputError, OutputExistsError

SUFFIXES = (".svg", ".png", ".pdf")

# Okabe and Ito's palette: told apart by colour-blind readers.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")
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
    """Draw majority ratio (left) and accuracy (right) over steps, one colour a method.

    Solid: majority ratio, avg@n. Dashed: label accuracy, maj@n. Bands: lowest to highest run of a method.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.0, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        for index, group in enumerate(groups):
            color = _COLORS[index % len(_COLORS)]
            suffix = f" ({len(group.runs)} runs)" if len(group.runs) > 1 else ""
            _line(left, group, "majority_ratio", color, "-", f"{group.label}{suffix}")
            _line(left, group, "label_accuracy", color, "--", None)
            _line(right, group, "accuracy", color, "-", f"{group.label}{suffix}")
            _line(right, group, "maj_accuracy", color, "--", None)
        _dress(left, "majority ratio", "majority ratio", "label accuracy")
        _dress(right, "accuracy", "avg@n", "maj@n")
        if title:
            figure.suptitle(title, fontsize=10)
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
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        temporary.write_bytes(render(figure, path.suffix.lower().lstrip(".")))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
    if path.exists() and not overwrite:
        raise OutputExistsError(f"{path} exists; give --overwrite to replace it or choose another name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: the folder {path.absolute().parent} does not exist; create it first")


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
    if not known_S.any():
        return
    step_S = group.step_S[known_S]
    marker = "o" if step_S.size < 12 else None
    axes.plot(
        step_S, group.mean[name][known_S], color=color, linestyle=style, marker=marker, markersize=3,
        linewidth=1.5 if style == "-" else 1.0, label=label,
    )  # fmt: skip
    if len(group.runs) > 1:
        low_S, high_S = group.low[name][known_S], group.high[name][known_S]
        axes.fill_between(step_S, low_S, high_S, color=color, alpha=0.15, linewidth=0)


def _dress(axes: Axes, title: str, solid: str, dashed: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(title, fontsize=9)
    axes.plot([], [], color="gray", linestyle="-", label=solid)
    axes.plot([], [], color="gray", linestyle="--", label=dashed)
    axes.legend(fontsize=7)
