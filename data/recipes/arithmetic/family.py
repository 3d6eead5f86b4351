r"""The question families: sums of two whole numbers, and products of a number with a digit.

Both are worked column by column and answered in a box.

Everything here is a pure function of its arguments; randomness comes from a ``random.Random`` that the
caller seeds. Numbers never seen in pre-training are recognised by a hash of the sum itself
(``is_reserved``), so that every set of test questions is disjoint from every corpus, whatever the seeds.

A completion has two steps with a blank line between them: the working, and a last step that ends with the
boxed answer. What the last step does is the ``LastStep`` of the family:

``copy``    the working carries, the last step only writes the answer
``again``   the working carries, the last step writes the whole sum again
``check``   the working carries, the last step undoes the sum or product: answer minus or over the second
``places``  the working adds the columns without carrying, the last step carries

>>> print(worked(Family(), Sum(347, 825)).replace("\n", "|"))
7+5=12|4+2+1=7|3+8=11||347+825=\boxed{1172}
>>> print(worked(Family(last_step="places"), Sum(347, 825)).replace("\n", "|"))
3+8=11|4+2=6|7+5=12||11,6,12=\boxed{1172}
>>> print(worked(Family(operation="*"), Sum(347, 6, "*")).replace("\n", "|"))
7*6=42|4*6+4=28|3*6+2=20||347*6=\boxed{2082}
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

LastStep = Literal["copy", "again", "check", "places"]
Operation = Literal["+", "*"]
SOURCES: dict[Operation, str] = {"+": "sums", "*": "products"}
"""What the question files call each family."""
RESERVED_SHARE = 50
"""One sum in this many is kept out of every corpus."""
TESTS, HELDOUT, WATCHED = 64, 64, 96
"""Sizes of the three sets of reserved questions."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Two numbers to add or, where the operation says so, to multiply (the second is then a digit)."""

    first: int
    second: int
    operation: Operation = "+"

    @property
    def result(self) -> int:
        """The right answer."""
        return self.first * self.second if self.operation == "*" else self.first + self.second


@dataclass(frozen=True, slots=True)
class Family:
    """Which sums there are and how they are worked.

    ``digits``: the lengths of the numbers, each equally likely; both numbers of a sum are of one length, and
    the second number of a product is a digit from 2 to 9.
    ``slip_rate``: probability, in a corpus, that a column's result is off by one, as in any text that people
    write. Half of the workings with a slip still end with the right answer (the writer noticed), half carry
    the slip into it, so that what follows a slip is uncertain.
    """

    digits: tuple[int, ...] = (3,)
    last_step: LastStep = "again"
    slip_rate: float = 0.0
    operation: Operation = "+"


class QuestionSets(NamedTuple):
    """Three disjoint sets of reserved questions, none of which is in any corpus."""

    test: list[Sum]
    """Test-time RL trains on these, without their answers."""
    heldout: list[Sum]
    """Only ever evaluated."""
    watched: list[Sum]
    """Pre-training looks at these to know when to stop."""


def family_from(recipe: Mapping[str, Any]) -> Family:
    """Return the family that a ``recipe.json`` describes."""
    return Family(**{**recipe["family"], "digits": tuple(recipe["family"]["digits"])})


def question(numbers: Sum) -> str:
    """Return the prompt: ``347+825?``, ``347*6?``."""
    return f"{numbers.first}{numbers.operation}{numbers.second}?"


def answer(numbers: Sum) -> str:
    """Return the right answer as a string."""
    return str(numbers.result)


def is_reserved(numbers: Sum) -> bool:
    """Return whether the sum (in either order) or the product is kept for test questions."""
    low, high = sorted((numbers.first, numbers.second))
    digest = hashlib.blake2b(f"{low}{numbers.operation}{high}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % RESERVED_SHARE == 0


def draw(family: Family, rng: random.Random, *, reserved: bool) -> Sum:
    """Draw one sum, from the reserved ones or from the others."""
    while True:
        length = rng.choice(family.digits)
        low, high = 10 ** (length - 1), 10**length - 1
        first = rng.randint(low, high)
        second = rng.randint(2, 9) if family.operation == "*" else rng.randint(low, high)
        numbers = Sum(first, second, family.operation)
        if is_reserved(numbers) == reserved:
            return numbers


def draw_questions(family: Family, seed: int, count: int) -> list[Sum]:
    """Draw ``count`` reserved sums, no two alike in either order; a prefix for a smaller ``count``.

    Raises ``ValueError`` for a family with too few reserved questions: sums of numbers under three digits,
    products of numbers under four.
    """
    least, words = (4, "four") if family.operation == "*" else (3, "three")
    if max(family.digits) < least:
        raise ValueError(f"digits {family.digits}: numbers of {words} digits or more are needed among them")
    rng = random.Random(seed)
    chosen: dict[tuple[int, int], Sum] = {}
    while len(chosen) < count:
        numbers = draw(family, rng, reserved=True)
        low, high = sorted((numbers.first, numbers.second))
        chosen.setdefault((low, high), numbers)
    return list(chosen.values())


def question_sets(family: Family, seed: int) -> QuestionSets:
    """Draw the test, held-out and watched questions of a seed."""
    drawn = draw_questions(family, seed, TESTS + HELDOUT + WATCHED)
    return QuestionSets(drawn[:TESTS], drawn[TESTS : TESTS + HELDOUT], drawn[TESTS + HELDOUT :])


def worked(family: Family, numbers: Sum, rng: random.Random | None = None) -> str:
    r"""Return the completion for a sum; with ``rng``, slips happen at the family's rate.

    >>> worked(Family(last_step="check"), Sum(347, 825)).splitlines()[-1]
    '\\boxed{1172}-825=347'
    """
    slip_rate = family.slip_rate if rng is not None else 0.0
    rng = rng or random.Random(0)
    carrying = family.last_step != "places"
    lines, results = _columns(numbers, carrying=carrying, slip_rate=slip_rate, rng=rng)
    reached = _reached(results, carrying=carrying)
    true = numbers.result
    result = true if reached != true and rng.random() < 0.5 else reached
    if not carrying:
        lines.reverse()
        results.reverse()
    last = _last_step(family.last_step, numbers, results, result)
    return "\n".join(lines) + "\n\n" + last


def _columns(
    numbers: Sum, *, carrying: bool, slip_rate: float, rng: random.Random
) -> tuple[list[str], list[int]]:
    """Work the columns from the right; return the lines and what each line says its column gives."""
    lines, results = [], []
    carry = 0
    sign, first = numbers.operation, str(numbers.first)
    second = str(numbers.second) * (len(first) if sign == "*" else 1)
    for one, two in zip(reversed(first), reversed(second), strict=True):
        result = (int(one) * int(two) if sign == "*" else int(one) + int(two)) + carry
        if slip_rate and rng.random() < slip_rate:
            result += 1 if result == 0 else rng.choice((-1, 1))
        lines.append(f"{one}{sign}{two}+{carry}={result}" if carry else f"{one}{sign}{two}={result}")
        results.append(result)
        carry = result // 10 if carrying else 0
    return lines, results


def _reached(results: list[int], *, carrying: bool) -> int:
    """Return the number that the columns' results (from the right) amount to."""
    top = len(results) - 1
    return sum(
        (result % 10 if carrying and place < top else result) * 10**place
        for place, result in enumerate(results)
    )


def _last_step(kind: LastStep, numbers: Sum, results: list[int], result: int) -> str:
    """Write the last step; ``results`` are those of the lines of the working, in their order."""
    box = f"\\boxed{{{result}}}"
    if kind == "copy":
        return box
    if kind == "again":
        return f"{numbers.first}{numbers.operation}{numbers.second}={box}"
    if kind == "check" and numbers.operation == "*":
        return f"{box}/{numbers.second}={result // numbers.second}"
    if kind == "check":
        return f"{box}-{numbers.second}={result - numbers.second}"
    return ",".join(map(str, results)) + f"={box}"
