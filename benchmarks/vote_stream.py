"""Claim: votes on 1 M rollouts stream, in about three times the time of reading their columns.

15,625 questions x 64 scored rollouts are generated. Reading is pyarrow's ``iter_batches`` over the columns
that a vote needs; voting is ``vote_files`` with sc and no output. Comparing answers (here: gold with the
spellings that are not its own) is timed inside the grader and taken off. Each side runs in a process of its
own, warmed up, whose peak memory is printed for the whole file and for a quarter of it.

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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import TableWriter

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
    from dttrl.scoring.vote import vote_files

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


def measured(kind: str, path: Path, warm: Path) -> dict[str, float]:
    """Run one side in a fresh process, warmed up on a small file."""
    command = [sys.executable, __file__, "--side", kind, "--file", str(path), "--warm", str(warm)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=15_625)
    parser.add_argument("--side", default="")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--warm", type=Path)
    options = parser.parse_args()
    if options.side:
        work = read if options.side == "read" else partial(vote, methods=options.side.split("+"))
        work(options.warm)
        began, busy = time.perf_counter(), time.process_time()
        found = work(options.file)
        found["seconds"], found["cpu"] = time.perf_counter() - began, time.process_time() - busy
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        whole, quarter, small = (Path(folder) / f"{name}.parquet" for name in ("whole", "quarter", "small"))
        for path, questions in ((whole, options.questions), (quarter, options.questions // 4), (small, 256)):
            generate(path, questions)

        def best(side: str) -> dict[str, float]:
            runs = [measured(side, whole, small) for _ in range(3)]
            return {name: min(run[name] for run in runs) for name in runs[0]}

        reading = best("read")
        print(
            f"{options.questions * N} rollouts; reading the columns: {reading['seconds']:.2f} s "
            f"({reading['cpu']:.2f} s of processor)"
        )
        for side in ("sc", "sc+wsc+bon+deepconf"):
            voting = best(side)
            wall, cpu = ((voting[name] - voting["comparing"]) / reading[name] for name in ("seconds", "cpu"))
            less = measured(side, quarter, small)["memory"]
            print(
                f"{side}: {voting['seconds']:.2f} s, of them comparing {voting['comparing']:.2f} s; "
                f"the rest is {wall:.1f} x reading ({cpu:.1f} x in processor time); "
                f"peak memory {voting['memory']:.0f} MB (a quarter of the file: {less:.0f} MB)"
            )


if __name__ == "__main__":
    main()
