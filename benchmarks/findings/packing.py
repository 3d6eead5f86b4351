"""What the findings need of finished runs: tables where the rollouts are whole, archives of the rest.

``runs.tar.xz``: settings, metrics, labels, evaluations, and the history of confidences of a few runs;
``rollouts.tar.xz``: the rollouts of those few without texts and tokens; ``drawn.tar.xz``: the rollouts drawn
from the starts, likewise; ``tables.tar.xz``: what ``dttrl analyze`` made; ``starts.tar.xz``: starts that were
pre-trained; ``logs.tar.xz``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plan as plans

SMALL = ("config.yaml", "metrics.jsonl", "labels.parquet", "evaluations.parquet")
SLIM = [
    "step", "query_id", "sample_id", "source", "prompt", "gold", "text", "finish_reason", "num_tokens",
    "answer", "answer_class", "confidence", "reward", "trained",
]  # fmt: skip
MEASURES = ("topk", "perplexity")
"""Of the confidences of the rollouts that are drawn from a start."""
LARGEST = 15 * 2**20
"""Bytes of a packed file."""


def analyse(options: argparse.Namespace) -> tuple[int, int]:
    """Make the tables that need whole rollouts, one process a table; return how many, and how many failed."""
    tables = options.work / "tables"
    tables.mkdir(exist_ok=True)
    running = []
    for run in kept_runs(options):
        for what, more in (("confidence", ["--every", "5"]), ("labels", []), ("distribution-shift", [])):
            log = (options.work / f"{run.name}.{what}.log").open("w")
            output = tables / f"{what}.{run.name}.parquet"
            command = ["analyze", what, str(run), "-o", str(output), "--overwrite", "--quiet", *more]
            code = "import sys; from dttrl_cli.app import main; sys.exit(main(sys.argv[1:]))"
            running.append(
                subprocess.Popen([sys.executable, "-P", "-c", code, *command], stdout=log, stderr=log)
            )
    return len(running), sum(process.wait() != 0 for process in running)


def kept_runs(options: argparse.Namespace) -> list[Path]:
    """Return the finished runs that kept their rollouts."""
    return [run for run in finished_runs(options) if any((run / "rollouts").glob("*.parquet"))]


def finished_runs(options: argparse.Namespace) -> list[Path]:
    """Return the runs that reached their last step."""
    runs = sorted((options.work / "runs").glob("*"))
    return [run for run in runs if (run / "checkpoints" / f"step-{options.steps:06d}").is_dir()]


def slim(source: Path, target: Path) -> None:
    """Copy rollouts without texts and token values: what votes, labels and shifts are computed from."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dttrl.data.schemas import ROLLOUTS
    from dttrl.data.tables import read_metadata, write_table

    names = pq.read_schema(source).names
    table = pq.read_table(source, columns=[name for name in SLIM if name in names])
    for name in ("text", "prompt"):
        position = table.column_names.index(name)
        empty = pa.array([""] * table.num_rows, table.schema.field(name).type)
        table = table.set_column(position, table.schema.field(name), empty)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_table(target, table, ROLLOUTS, metadata=read_metadata(source), overwrite=True)


def pack(options: argparse.Namespace, records: Sequence[dict[str, Any]]) -> None:
    """Write the archives and the record of the jobs; a part that would be too large is left out and said."""
    (options.out / "grid.json").write_text(json.dumps(list(records)))
    packed = options.work / "packed"
    shutil.rmtree(packed, ignore_errors=True)
    for run in finished_runs(options):
        (packed / run.name).mkdir(parents=True, exist_ok=True)
        for name in SMALL:
            if (run / name).is_file():
                shutil.copy(run / name, packed / run.name / name)
        kept = sorted((run / "rollouts").glob("*.parquet"))
        for path in kept:
            slim(path, packed / run.name / "rollouts" / path.name)
        if kept and (run / "history.parquet").is_file():
            shutil.copy(run / "history.parquet", packed / run.name / "history.parquet")
    rollouts = lambda info: None if "rollouts" in info.name else info  # noqa: E731
    archive(options.out / "runs.tar.xz", packed, "runs", keep=rollouts)
    only = lambda info: info if info.isdir() or "rollouts" in info.name else None  # noqa: E731
    archive(options.out / "rollouts.tar.xz", packed, "runs", keep=only)
    for measure in MEASURES:
        for path in sorted(options.work.glob(f"*.{measure}.parquet")):
            slim(path, options.work / "drawn" / path.name)
    archive(options.out / "drawn.tar.xz", options.work / "drawn", "drawn")
    archive(options.out / "tables.tar.xz", options.work / "tables", "tables")
    light = lambda info: None if info.issym() or info.size > 2**23 else info  # noqa: E731
    if options.pretrain or plans.on_smollm2(options.plan):
        archive(options.out / "starts.tar.xz", options.work / "starts", "starts", keep=light)
    logs = options.work / "logs"
    logs.mkdir(exist_ok=True)
    for log in options.work.glob("*.log"):
        shutil.copy(log, logs)
    archive(options.out / "logs.tar.xz", logs, "logs")


def archive(path: Path, folder: Path, name: str, *, keep: Any = None) -> None:
    """Pack a folder; what is larger than a transfer takes is cut into ``.0``, ``.1`` (``cat`` joins them)."""
    if not folder.is_dir():
        return
    with tarfile.open(path, "w:xz", preset=2) as tar:
        tar.add(folder, arcname=name, filter=keep)
    size = path.stat().st_size
    print(f"{path.name}: {size / 2**20:.1f} MiB", flush=True)
    if size > LARGEST:
        data = path.read_bytes()
        for number, start in enumerate(range(0, size, LARGEST)):
            path.with_name(f"{path.name}.{number}").write_bytes(data[start : start + LARGEST])
        path.unlink()
