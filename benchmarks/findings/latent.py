"""The tables of docs/latent.md that come from rollouts: every strategy, stopping, and parts of the model.

    PYTHONPATH=.:cli python benchmarks/findings/latent.py FILES... -o data/reference/tables

FILES are scored rollouts (``dttrl score``), one step's each, with gold answers. Writes ``latent-offline``,
``latent-stopping`` and ``latent-ablation`` as Parquet, and prints them. ``--tables`` names those to make.
Rows of files that are not given stay as they are, so that files from elsewhere can be added one by one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from ablation import ablation_rows
from drawn import Drawn, read_drawn
from strategies import offline_rows

VOTES = 64
"""Rollouts of a question, as in the paper, where a table has one budget."""

Rows = Callable[[Path, argparse.Namespace], pd.DataFrame]


def offline(path: Path, options: argparse.Namespace) -> pd.DataFrame:
    """Every strategy at every budget."""
    return offline_rows(read_drawn(path), repeats=options.repeats)


def ablation(path: Path, options: argparse.Namespace) -> pd.DataFrame:
    """The model without some of its parts, at one budget."""
    drawn: Drawn = read_drawn(path)
    return ablation_rows(drawn, budget=min(VOTES, drawn.size), repeats=options.repeats)


def stopping(path: Path, options: argparse.Namespace) -> pd.DataFrame:
    """Stopping when sure, as sampling in blocks would have done it; the default threshold and two others."""
    from dttrl.analysis.stopping import LEAST, stopping_table
    from dttrl.ranges import SURE

    most = min(VOTES, read_drawn(path).size)
    return stopping_table(
        [path], samples=f"{LEAST}..{most}", thresholds=(0.8, SURE, 0.95), repeats=options.repeats
    )


TABLES: dict[str, Rows] = {"offline": offline, "stopping": stopping, "ablation": ablation}


def main() -> None:
    """Make the tables, file by file."""
    options = parse()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.tables:
        target = options.output / f"latent-{name}.parquet"
        for path in options.files:
            merged(target, TABLES[name](path, options))
            print(f"{target.name}: {path.stem}", flush=True)
        with pd.option_context("display.width", 200, "display.max_rows", None, "display.max_columns", None):
            print(pd.read_parquet(target).round(3).to_string(index=False))


def merged(target: Path, rows: pd.DataFrame) -> None:
    """Put rows into a table in the place of those of the same files."""
    if target.is_file():
        old = pd.read_parquet(target)
        rows = pd.concat([old[~old["file"].isin(set(rows["file"]))], rows], ignore_index=True)
    written = target.with_suffix(".tmp")
    rows.to_parquet(written, index=False)
    written.rename(target)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Tables of the latent-answer vote from scored rollouts.")
    parser.add_argument("files", type=Path, nargs="+", help="scored rollouts with gold answers")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--tables", nargs="*", choices=list(TABLES), default=list(TABLES), help="which")
    parser.add_argument("--repeats", type=int, default=16, help="draws of a budget")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
