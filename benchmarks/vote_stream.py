"""Claim: votes on 1 M rollouts stream, within 3 times of reading their columns, answer comparison apart.

15,625 questions x 64 scored rollouts are generated. Reading is pyarrow's ``iter_batches`` over the columns
that a vote needs; voting is ``vote_files`` with sc and no output. Comparing answers (here: gold with the
spellings that are not its own) is timed inside the grader and taken off. Each side runs in a process of its
own, whose peak memory is printed for the whole file and for a quarter of it.

    python benchmarks/vote_stream.py [--questions 15625]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dttrl.schemas import ROLLOUTS
from dttrl.tables import TableWriter

N = 64
COLUMNS = ["step", "query_id", "sample_id", "gold", "answer", "answer_class", "confidence"]


def generate(path: Path, questions: int) -> None:
    rng = np.random.default_rng(0)
    schema = ROLLOUTS.select([*COLUMNS, "text", "num_tokens"])
    with TableWriter(path, schema, metadata={"measure": "topk"}) as writer:
        for first in range(0, questions, 256):
            size = min(256, questions - first)
            right = rng.random((size, N)) < rng.beta(1.5, 0.8, (size, 1))
            number = np.where(right, 0, 1 + np.minimum(rng.geometric(0.3, (size, N)), 20))
            number[rng.random((size, N)) < 0.02] = -1
            base = rng.integers(10, 999, (size, 1))
            answers = np.where(number < 0, "", (base * 7 + number).astype(str))
            classes = np.full((size, N), -1, dtype=np.int32)
            for r in range(size):
                seen: dict[int, int] = {}
                classes[r] = [-1 if v < 0 else seen.setdefault(v, len(seen)) for v in number[r].tolist()]
            columns: dict[str, Any] = {
                "step": pa.nulls(size * N, pa.int32()),
                "query_id": np.repeat([f"question-{first + r:06d}" for r in range(size)], N),
                "sample_id": np.tile(np.arange(N, dtype=np.int32), size),
                "gold": np.repeat((base[:, 0] * 7).astype(str), N),
                "text": pa.array(["so the answer is clear. " * 20] * (size * N), pa.large_string()),
                "num_tokens": np.full(size * N, 120, dtype=np.int32),
                "answer": pa.array(answers.ravel(), pa.string(), mask=answers.ravel() == ""),
                "answer_class": classes.ravel(),
                "confidence": (12 + rng.normal(0, 1, (size, N)) + right).ravel(),
            }
            arrays = [pa.array(columns[field.name], field.type) for field in schema]
            writer.write(pa.table(arrays, schema=schema))


def read(path: Path) -> dict[str, float]:
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(columns=COLUMNS):
            assert len(batch)
    return {}


def vote(path: Path, methods: list[str]) -> dict[str, float]:
    from dttrl.answers.grading import Grader
    from dttrl.offline import vote_files

    spent = 0.0

    class Timed(Grader):
        def match(self, *args: Any) -> int:
            nonlocal spent
            began = time.perf_counter()
            try:
                return super().match(*args)
            finally:
                spent += time.perf_counter() - began

    with Timed() as grader:
        summary = vote_files([path], methods, grader=grader)
    return {"comparing": spent, "right": float(summary.methods[0].correct)}


def measured(kind: str, path: Path) -> dict[str, float]:
    """Run one side in a fresh process; the import of what it needs is not timed."""
    command = [sys.executable, __file__, "--side", kind, "--file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=15_625)
    parser.add_argument("--side", default="")
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    if options.side:
        import dttrl.offline  # noqa: F401

        began = time.perf_counter()
        found = read(options.file) if options.side == "read" else vote(options.file, options.side.split("+"))
        found["seconds"] = time.perf_counter() - began
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        whole, quarter = Path(folder) / "whole.parquet", Path(folder) / "quarter.parquet"
        generate(whole, options.questions)
        generate(quarter, options.questions // 4)
        reading = min(measured("read", whole)["seconds"] for _ in range(3))
        print(f"{options.questions * N} rollouts; reading the columns: {reading:.2f} s")
        for side in ("sc", "sc+wsc+bon+deepconf"):
            best = min((measured(side, whole) for _ in range(3)), key=lambda run: run["seconds"])
            own = best["seconds"] - best["comparing"]
            less = measured(side, quarter)["memory"]
            print(
                f"{side}: {best['seconds']:.2f} s, of them comparing {best['comparing']:.2f} s; the rest is "
                f"{own / reading:.1f} x reading; peak memory {best['memory']:.0f} MB "
                f"(a quarter of the file: {less:.0f} MB)"
            )


if __name__ == "__main__":
    main()
