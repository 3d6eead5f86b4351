"""How many rollouts a question gets: a number, or a range ``8..64`` within which it stops when it is sure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import core_schema

SURE = 0.875
"""Probability of a question's winner at which it stops, where a range is given and nothing else is said."""
STEADY = 16
"""Rollouts over which a question must be sure at every look before it stops.

A model that is fitted to few rollouts is too sure, and one look of many is sure by chance.
"""
NO_RANGE = "one number of rollouts (it needs a range, as --{} 8..64)"
"""What leaves the threshold unread."""
_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")


@dataclass(frozen=True, slots=True)
class SampleRange:
    """At least ``least`` rollouts of a question, at most ``most``, drawn in blocks of ``least``.

    A question is looked at after each block. Ranges in which no question can stop are refused.

    >>> str(SampleRange.parse("8 .. 28")), list(SampleRange(8, 28).blocks())
    ('8..28', [range(0, 8), range(8, 16), range(16, 24), range(24, 28)])
    >>> [(each.looks, each.earliest) for each in (SampleRange(least, 64) for least in (4, 8, 16))]
    [(5, 20), (3, 24), (2, 32)]
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least < self.most:
            raise ValueError(
                f"a range goes from at least 1 up to more than that, as 8..64, got {str(self)!r}"
            )
        if self.most <= self.earliest:
            raise ValueError(
                f"in {self} no question can stop: after blocks of {self.least} the first that can has "
                f"{self.earliest} rollouts; go beyond {self.earliest} or draw smaller blocks"
            )

    def __str__(self) -> str:
        return f"{self.least}..{self.most}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the range that is written ``LOW..HIGH``; ValueError for anything else."""
        found = _RANGE.fullmatch(text)
        if found is None:
            raise ValueError(f"a number of rollouts or a range as 8..64 is needed, got {text!r}")
        return cls(int(found[1]), int(found[2]))

    @property
    def looks(self) -> int:
        """Looks in a row at which a question must be sure: those of its last :data:`STEADY` rollouts."""
        return 1 + math.ceil(STEADY / self.least)

    @property
    def earliest(self) -> int:
        """Rollouts of the first question that can stop."""
        return self.looks * self.least

    def blocks(self) -> Iterator[range]:
        """Yield the sample ids of each block; the last may be shorter."""
        for first in range(0, self.most, self.least):
            yield range(first, min(first + self.least, self.most))


class _NumberOrRange:
    """Makes a field take a whole number of at least 1, or a range as text; as text it is written again."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        del source, handler

        def read(value: Any, number: core_schema.ValidatorFunctionWrapHandler) -> Any:
            if isinstance(value, SampleRange):
                return value
            plain = not isinstance(value, str) or value.strip().lstrip("+-").isdigit()
            return number(value) if plain else SampleRange.parse(value)

        written = core_schema.plain_serializer_function_ser_schema(
            lambda value: str(value) if isinstance(value, SampleRange) else value, when_used="json"
        )
        return core_schema.no_info_wrap_validator_function(
            read, core_schema.int_schema(ge=1), serialization=written
        )


Count = Annotated[int | SampleRange, _NumberOrRange]
"""The type of a setting that is a number of rollouts or a range."""
Threshold = Annotated[float | None, Field(gt=0, lt=1)]
"""The type of the setting beside it: the probability at which a question stops, None where none does."""


def most(count: int | SampleRange) -> int:
    """Return how many rollouts a question has at most."""
    return count.most if isinstance(count, SampleRange) else count


def least(count: int | SampleRange) -> int:
    """Return how many rollouts a question has at least."""
    return count.least if isinstance(count, SampleRange) else count


def with_threshold(given: Any, name: str) -> Any:
    """Return settings with ``until`` at :data:`SURE` where ``name`` is a range and nothing is said of it."""
    if not isinstance(given, Mapping) or given.get("until") is not None or ".." not in str(given.get(name)):
        return given
    return {**given, "until": SURE}
