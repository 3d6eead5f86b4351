"""Every request's own stream of uniform numbers, looked up by its place among the sampled tokens.

The streams are those of the transformers sampler, so that both draw the same samples up to the rounding of
the model's arithmetic, whatever a sample is batched with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dttrl.rng import derive

_BLOCK = 64
_FORGET = 4096


class Uniforms:
    """Streams by request id; a request is introduced once by :meth:`add`."""

    def __init__(self) -> None:
        self._streams: dict[str, tuple[int, int, str, str]] = {}
        self._generators: dict[str, np.random.Generator] = {}
        self._drawn: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._numbers = np.zeros((0, _BLOCK), dtype=np.float32)
        self._block = np.zeros(0, dtype=np.int64)
        self._free: list[int] = []

    def knows(self, name: str) -> bool:
        """Say whether a request has been introduced."""
        return name in self._slots

    def add(self, name: str, stream: Sequence[int | str]) -> None:
        """Introduce a request: its stream is (seed, step, query, purpose)."""
        seed, step, query, purpose = stream
        self._streams[name] = (int(seed), int(step), str(query), str(purpose))
        if not self._free:
            grown = max(64, 2 * len(self._block))
            self._free = list(range(grown - 1, len(self._block) - 1, -1))
            extra = grown - len(self._block)
            self._numbers = np.concatenate([self._numbers, np.zeros((extra, _BLOCK), np.float32)])
            self._block = np.concatenate([self._block, np.full(extra, -1)])
        slot = self._slots[name] = self._free.pop()
        self._block[slot] = -1

    def keep(self, names: Sequence[str]) -> None:
        """Forget the requests that are not named, once there are many of them."""
        if len(self._slots) > _FORGET + 2 * len(names):
            for name in set(self._slots).difference(names):
                self._free.append(self._slots.pop(name))
                for table in (self._streams, self._generators, self._drawn):
                    table.pop(name, None)

    def slots(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return where the requests' numbers are, for :meth:`at`; it holds until :meth:`keep` is called."""
        return np.array([self._slots[name] for name in names], dtype=np.int64)

    def at(
        self, names: Sequence[str], slot_R: NDArray[np.int64], place_R: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return the number of each request at its place, float32 in [0, 1)."""
        block_R, inside_R = np.divmod(place_R, _BLOCK)
        for row in np.flatnonzero(self._block[slot_R] != block_R).tolist():
            self._numbers[slot_R[row]] = self._draw(names[row], int(block_R[row]))
            self._block[slot_R[row]] = block_R[row]
        return self._numbers[slot_R, inside_R]

    def _draw(self, name: str, block: int) -> NDArray[np.float32]:
        if name not in self._generators or self._drawn[name] > block:
            seed, step, query, purpose = self._streams[name]
            self._generators[name] = derive(seed, step=step, query=query, purpose=purpose)
            self._drawn[name] = 0
        generator = self._generators[name]
        for _ in range(self._drawn[name], block):
            generator.random(_BLOCK, dtype=np.float32)
        self._drawn[name] = block + 1
        return generator.random(_BLOCK, dtype=np.float32)
