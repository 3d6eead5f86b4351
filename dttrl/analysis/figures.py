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
from dttrl.analysis.comparison import ComparisonRow
from dttrl.analysis.confidence_quality import Separation
from dttrl.analysis.label_quality import LabelQuality
from dttrl.analysis.majority import TITLES, GroupCurve
from dttrl.analysis.shift import ShiftCurve
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


def shift_panels(curves: Sequence[ShiftCurve], *, bins: int = 80) -> Figure:
    """Draw the distribution of each block (a panel a group, light to dark) and the shifts of all groups."""
    with matplotlib.rc_context(_STYLE):
        figure, panels = _grid(len(curves) + 1)
        for axes, curve in zip(panels, curves, strict=False):
            pooled = np.concatenate([block.value_N for block in curve.blocks])
            low, high = np.quantile(pooled, [0.002, 0.998]).tolist()
            edges = np.linspace(low, high, bins + 1)
            colors = matplotlib.colormaps["viridis_r"](np.linspace(0.1, 1.0, len(curve.blocks)))
            for block, color in zip(curve.blocks, colors, strict=True):
                density, _ = np.histogram(block.value_N, edges)
                height = density / (block.value_N.size * np.diff(edges))
                axes.stairs(height, edges, color=color, linewidth=1.2, label=f"steps {block.span}")
            axes.set(xlabel="confidence", ylabel="density")
            axes.set_title(curve.group.title, fontsize=8)
            axes.legend(fontsize=6)
        axes = panels[len(curves)]
        for index, curve in enumerate(curves):
            moved = curve.blocks[1:]
            axes.plot(
                [block.span.last for block in moved], [block.relative_shift for block in moved],
                color=_COLORS[index % len(_COLORS)], marker="o", markersize=3, label=curve.group.title,
            )  # fmt: skip
        axes.axhline(0.0, color="black", linewidth=0.8)
        axes.set(xlabel="step", ylabel="shift (standard deviations)")
        axes.set_title("shift from the block before", fontsize=9)
        if any(len(curve.blocks) > 1 for curve in curves):
            axes.legend(fontsize=6)
        return figure


def label_panels(measured: Sequence[LabelQuality]) -> Figure:
    """Draw label accuracy (solid) with reward accuracy (dashed), AUROC within questions, and calibration."""
    with matplotlib.rc_context(_STYLE):
        known = any(quality.calibration for quality in measured)
        figure, panels = _grid(3 if known else 2)
        for index, quality in enumerate(measured):
            color = _COLORS[index % len(_COLORS)]
            steps = [block.span.last for block in quality.blocks]
            for axes, name, style in (
                (panels[0], "label_accuracy", "-"),
                (panels[0], "reward_accuracy", "--"),
                (panels[1], "auroc_within", "-"),
            ):
                axes.plot(
                    steps, [block.means[name] for block in quality.blocks], style, color=color, marker="o",
                    markersize=3, label=quality.group.title if style == "-" else None,
                )  # fmt: skip
            if quality.calibration:
                panels[2].plot(
                    [row.probability for row in quality.calibration],
                    [row.right for row in quality.calibration],
                    color=color, marker="o", markersize=3,
                )  # fmt: skip
        gray = [("label accuracy", "-"), ("reward accuracy", "--")]
        _dress(panels[0], "labels", gray)
        _dress(panels[1], "AUROC of confidence within questions", [])
        panels[1].axhline(0.5, color="black", linewidth=0.8)
        if known:
            panels[2].plot([0, 1], [0, 1], color="black", linewidth=0.8)
            panels[2].set(xlabel="P(positive | confidence)", ylabel="share right", ylim=(-0.02, 1.02))
            panels[2].set_title("calibration of the mixture", fontsize=9)
        return figure


def separation_panels(found: Sequence[Separation]) -> Figure:
    """Draw the AUROC within questions over steps: a panel a group and source, a colour a confidence."""
    places = list(dict.fromkeys((item.group.title, item.source) for item in found))
    kinds = list(dict.fromkeys((item.measure, item.region) for item in found))
    with matplotlib.rc_context(_STYLE):
        figure, panels = _grid(len(places))
        for axes, place in zip(panels, places, strict=False):
            for index, kind in enumerate(kinds):
                line = [
                    item
                    for item in found
                    if (item.group.title, item.source, item.measure, item.region) == (*place, *kind)
                ]
                axes.plot(
                    [item.span.last for item in line], [item.within for item in line],
                    color=_COLORS[index % len(_COLORS)], linestyle=_DASHES[index // len(_COLORS) % 4],
                    marker="o", markersize=3, label=", ".join(kind),
                )  # fmt: skip
            axes.axhline(0.5, color="black", linewidth=0.8)
            _dress(axes, ": ".join(place), [])
        return figure


def comparison_panels(rows: Sequence[ComparisonRow]) -> Figure:
    """Draw avg@n after training, a panel a question set, start and split; a line marks where it began."""
    places = list(dict.fromkeys((row.group.questions, row.group.start, row.split) for row in rows))
    most = max(sum((r.group.questions, r.group.start, r.split) == place for r in rows) for place in places)
    with matplotlib.rc_context(_STYLE):
        figure, panels = _grid(len(places), height=1.2 + 0.24 * most, width=4.8)
        for axes, place in zip(panels, places, strict=False):
            shown = [row for row in rows if (row.group.questions, row.group.start, row.split) == place]
            for height, row in enumerate(shown):
                color = _COLORS[0 if row.split == "train" else 1]
                axes.plot([row.after.low, row.after.high], [height, height], color=color, linewidth=1.5)
                axes.plot([row.after.value], [height], "o", color=color, markersize=4)
            axes.axvline(float(np.mean([row.before.value for row in shown])), color="gray", linestyle="--")
            axes.set_yticks(range(len(shown)), [row.group.label for row in shown], fontsize=7)
            axes.set_ylim(len(shown) - 0.5, -0.5)
            axes.set_xlabel(f"avg@{shown[0].n} (dashed: before)")
            axes.set_title(", ".join(place), fontsize=8)
        return figure


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
