"""The statistics of every sampled token, kept per request on the device and moved to the host in blocks.

It runs in the process that samples and never waits for the device while decoding. A row is identified by its
request and by its place among the request's sampled tokens, so that neither a token computed twice nor a row
without a token (a part of a prompt) can move the others; with every row goes the token it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dttrl.kernels.token_statistics import STATISTICS, observe

BLOCK_ROWS = 2**15
"""Rows on the device before they are moved to the host (655 kB)."""
BLOCK_STEPS = 128
_NUMBERS = STATISTICS + 1


@dataclass(slots=True)
class _Recorded:
    numbers_5R: Tensor
    ids: list[str]
    place_R: NDArray[np.int32]
    keep_R: NDArray[np.bool_]


@dataclass(slots=True)
class _Moving:
    """Rows on their way to the host; they have arrived when ``event`` has happened (None: they have)."""

    numbers_5N: Tensor
    steps: list[_Recorded]
    event: torch.cuda.Event | None


class Recorder:
    """Statistics of sampled tokens by request id; ``k`` entries go into the confidence."""

    def __init__(self, k: int, *, block_rows: int = BLOCK_ROWS) -> None:
        self._k, self._block_rows = k, block_rows
        self._steps: list[_Recorded] = []
        self._rows = 0
        self._moving: list[_Moving] = []
        self._table: dict[str, NDArray[np.float32]] = {}
        self._taken: list[frozenset[str]] = [frozenset(), frozenset()]

    def record(
        self,
        logits_RV: Tensor,
        token_R: Tensor,
        ids: list[str],
        place_R: NDArray[np.int32],
        keep_R: NDArray[np.bool_],
    ) -> None:
        """Take one decoding step: raw logits, the sampled tokens, whose they are, and which place they have.

        Rows where ``keep_R`` is false sampled no token of their request. ``ids``, ``place_R`` and ``keep_R``
        are kept, not copied; a list of ids that comes again is looked up once.
        """
        numbers_5R = torch.empty((_NUMBERS, len(ids)), dtype=torch.float32, device=logits_RV.device)
        numbers_5R[STATISTICS].view(torch.int32).copy_(token_R)
        observe(logits_RV, token_R, self._k, numbers_5R[:STATISTICS])
        self._steps.append(_Recorded(numbers_5R, ids, place_R, keep_R))
        self._rows += len(ids)
        if self._rows >= self._block_rows or len(self._steps) >= BLOCK_STEPS:
            self._move()
            self._settle(keep=1)

    def take(self, ids: Sequence[str]) -> list[NDArray[np.float32]]:
        """Hand over what is known of these requests and forget them: a (T, 5) float32 array each.

        Columns 0 to 3 are the statistics, column 4 is the token id as the bits of an int32, -1 where nothing
        was recorded.
        """
        self._move()
        self._settle(keep=0)
        # An engine that schedules ahead samples once or twice more for a request that has ended.
        self._taken = [self._taken[1], frozenset(ids)]
        return [self._table.pop(name, _empty(0)) for name in ids]

    def clear(self) -> None:
        """Forget everything."""
        self._steps, self._rows = [], 0
        self._moving.clear()
        self._table.clear()

    def _move(self) -> None:
        """Start moving the rows gathered so far to the host."""
        if not self._steps:
            return
        numbers_5N = torch.cat([step.numbers_5R for step in self._steps], dim=1)
        event = None
        if numbers_5N.is_cuda:
            host_5N = torch.empty(numbers_5N.shape, dtype=torch.float32, pin_memory=True)
            host_5N.copy_(numbers_5N, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            numbers_5N = host_5N
        self._moving.append(_Moving(numbers_5N, self._steps, event))
        self._steps, self._rows = [], 0

    def _settle(self, *, keep: int) -> None:
        """Sort the moved blocks by request, but for the ``keep`` last ones, which may still be on the way."""
        while len(self._moving) > keep:
            block = self._moving.pop(0)
            if block.event is not None:
                block.event.synchronize()
            self._sort(block)

    def _sort(self, block: _Moving) -> None:
        slots: dict[str, int] = {}
        # The same requests are decoded for many steps, and then in one list.
        slot_R: dict[int, NDArray[np.int32]] = {}
        for step in block.steps:
            if id(step.ids) not in slot_R:
                numbers = [slots.setdefault(name, len(slots)) for name in step.ids]
                slot_R[id(step.ids)] = np.array(numbers, dtype=np.int32)
        slot_N = np.concatenate([slot_R[id(step.ids)] for step in block.steps])
        place_N = np.concatenate([step.place_R for step in block.steps])
        kept_M = np.flatnonzero(np.concatenate([step.keep_R for step in block.steps]))
        order_M = kept_M[np.argsort(slot_N[kept_M], kind="stable")]
        numbers_M5 = block.numbers_5N.numpy().T[order_M]
        place_M, slot_M = place_N[order_M], slot_N[order_M]
        ends = np.searchsorted(slot_M, np.arange(len(slots)), side="right").tolist()
        start = 0
        for name, end in zip(slots, ends, strict=True):
            if end > start and not any(name in taken for taken in self._taken):
                self._put(name, place_M[start:end], numbers_M5[start:end])
            start = end

    def _put(self, name: str, place_M: NDArray[np.int32], numbers_M5: NDArray[np.float32]) -> None:
        table = self._table.get(name)
        size = int(place_M.max()) + 1
        if table is None:
            table = self._table[name] = _empty(size)
        elif size > len(table):
            # Half again as much: rewriting stays linear in the length.
            extra = max(size, len(table) * 3 // 2) - len(table)
            table = self._table[name] = np.concatenate([table, _empty(extra)])
        table[place_M] = numbers_M5


def tokens_of(table_T5: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the token id (T,) of every row of a handed-over table."""
    return np.ascontiguousarray(table_T5[:, STATISTICS]).view(np.int32)


def _empty(rows: int) -> NDArray[np.float32]:
    table = np.zeros((rows, _NUMBERS), dtype=np.float32)
    table[:, STATISTICS] = np.full(rows, -1, dtype=np.int32).view(np.float32)
    return table
