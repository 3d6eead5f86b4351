"""Blocks of consecutive training steps, in which the questions of a run come round again.

A step trains on few questions, other ones than the step before; the paper looks at 15 steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dttrl.errors import InputError

STEPS = 15
"""The paper's length of a block (fig:distribution_shift)."""


class Span(NamedTuple):
    """First and last step of a block, both in it."""

    first: int
    last: int

    def __str__(self) -> str:
        """Return ``1-15``, or ``1`` for a single step."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def holds(self, step: int) -> bool:
        """Whether a step lies in the block."""
        return self.first <= step <= self.last

    @property
    def columns(self) -> dict[str, int]:
        """What a table says of the block."""
        return {"first_step": self.first, "last_step": self.last}


def spans(steps: Sequence[int], size: int = STEPS) -> list[Span]:
    """Cut the steps into blocks of ``size`` step numbers; empty blocks are left out.

    A last block of under half the size joins its neighbour. Ends are steps that there are.

    >>> [str(span) for span in spans(range(1, 38), 15)]
    ['1-15', '16-37']
    >>> [str(span) for span in spans(range(1, 39, 4), 15)]
    ['1-13', '17-37']
    """
    if size < 1:
        raise InputError(f"a block needs at least 1 step, got {size}")
    parts: dict[int, list[int]] = {}
    for step in sorted(set(steps)):
        parts.setdefault((step - min(steps)) // size, []).append(step)
    blocks = list(parts.values())
    if len(blocks) > 1 and 2 * (blocks[-1][-1] - min(steps) + 1 - size * max(parts)) < size:
        blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [Span(block[0], block[-1]) for block in blocks]
