"""The rollouts of a file question by question, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from dttrl.data.rollout_files import RolloutFiles


class RolloutGroup(NamedTuple):
    """The rollouts of one question at one step, sorted by sample_id."""

    step: int | None
    query_id: str
    table: pa.Table


def read_groups(files: RolloutFiles, columns: Sequence[str] | None = None) -> Iterator[RolloutGroup]:
    """Yield the rollouts of one (step, query_id) after the other, read in blocks of one question."""
    for block in files.blocks(columns, rows=1):
        bounds = pairwise(block.start_Q.tolist())
        for step, query, (start, stop) in zip(block.step, block.query_id, bounds, strict=True):
            yield RolloutGroup(step, query, block.table.slice(start, stop - start))
