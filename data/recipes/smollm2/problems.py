r"""Two families of arithmetic problems in English, with worked steps and a boxed answer.

``long-sums``: two numbers of three to five digits, added place by place. ``two-steps``: a short story whose
answer takes a multiplication and then an addition or a subtraction. Everything is made here from seeds and
templates; no text comes from elsewhere. One problem in fifty, chosen by a hash of its numbers, is in no
training text, whatever the seed.

>>> problem = Problem("long-sums", (347, 825), 0)
>>> question(problem)
'What is 347 + 825?'
>>> print(worked(problem))
7 + 5 = 12, write 2, carry 1.
4 + 2 + 1 = 7, write 7, carry 0.
3 + 8 = 11, write 11.
<BLANKLINE>
The answer is \boxed{1172}.
"""

from __future__ import annotations

import hashlib
import random
from typing import Literal, NamedTuple

Family = Literal["long-sums", "two-steps"]
FAMILIES: tuple[Family, ...] = ("long-sums", "two-steps")
RESERVED_SHARE = 50
TESTS, HELDOUT, WATCHED = 64, 64, 64
"""Sizes of the three disjoint sets of reserved problems of a family."""

_NAMES = ("Ana", "Ben", "Chidi", "Dora", "Emil", "Fatima", "Goran", "Hana", "Ines", "Jonas", "Kaya", "Leo")
_THINGS = ("pencils", "apples", "stamps", "marbles", "buttons", "cards", "shells", "coins", "beads", "nails")
_BOXES = ("boxes", "bags", "jars", "packs", "crates", "trays")
# {a} things to begin with, {b} boxes of {c}.
_STORIES = (
    ("{who} has {a} {things}. {who} buys {b} {boxes} with {c} {things} each. "
     "How many {things} does {who} have now?", 1),
    ("A shop has {a} {things} and orders {b} {boxes} of {c} {things}. How many {things} are there then?", 1),
    ("{who} fills {b} {boxes} with {c} {things} each and has {a} {things} left over. "
     "How many {things} were there?", 1),
    ("{who} had {b} {boxes} with {c} {things} each and gave away {a} {things}. "
     "How many {things} are left?", -1),
    ("A school buys {b} {boxes} of {c} {things}. The pupils use {a} {things}. How many {things} remain?", -1),
)  # fmt: skip


class Problem(NamedTuple):
    """A family, the numbers, and a seed for how the story is told."""

    family: Family
    numbers: tuple[int, ...]
    telling: int


class ProblemSets(NamedTuple):
    """Three disjoint sets of reserved problems of one family."""

    test: list[Problem]
    heldout: list[Problem]
    watched: list[Problem]


def question(problem: Problem) -> str:
    """Return the problem as it is asked."""
    if problem.family == "long-sums":
        return "What is {} + {}?".format(*problem.numbers)
    rng = random.Random(problem.telling)
    first, boxes, each = problem.numbers
    story, _ = _story(problem)
    return story.format(
        who=rng.choice(_NAMES), things=rng.choice(_THINGS), boxes=rng.choice(_BOXES), a=first, b=boxes, c=each
    )


def answer(problem: Problem) -> str:
    """Return the right answer."""
    if problem.family == "long-sums":
        return str(sum(problem.numbers))
    first, boxes, each = problem.numbers
    return str(boxes * each + _story(problem)[1] * first)


def worked(problem: Problem) -> str:
    """Return a right completion: the steps, a blank line, the boxed answer."""
    lines = _add(*problem.numbers) if problem.family == "long-sums" else _two_steps(problem)
    return "\n".join(lines) + f"\n\nThe answer is \\boxed{{{answer(problem)}}}."


def is_reserved(problem: Problem) -> bool:
    """Return whether the numbers are kept out of all training text."""
    text = f"{problem.family}:{sorted(problem.numbers)}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % RESERVED_SHARE == 0


def draw(family: Family, rng: random.Random, *, reserved: bool) -> Problem:
    """Draw a problem, from the reserved ones or from the others."""
    while True:
        telling = rng.randrange(2**32)
        if family == "long-sums":
            length = rng.choice((3, 4, 5))
            low, high = 10 ** (length - 1), 10**length - 1
            problem = Problem(family, (rng.randint(low, high), rng.randint(low, high)), telling)
        else:
            boxes, each = rng.randint(3, 19), rng.randint(11, 49)
            problem = Problem(family, (rng.randint(11, boxes * each - 1), boxes, each), telling)
        if is_reserved(problem) == reserved:
            return problem


def problem_sets(family: Family, seed: int = 2026) -> ProblemSets:
    """Draw the test, held-out and watched problems of a family; no two have the same numbers."""
    rng = random.Random(f"{family}:{seed}")
    chosen: dict[tuple[int, ...], Problem] = {}
    while len(chosen) < TESTS + HELDOUT + WATCHED:
        problem = draw(family, rng, reserved=True)
        chosen.setdefault(tuple(sorted(problem.numbers)), problem)
    drawn = list(chosen.values())
    return ProblemSets(drawn[:TESTS], drawn[TESTS : TESTS + HELDOUT], drawn[TESTS + HELDOUT :])


def _story(problem: Problem) -> tuple[str, int]:
    return _STORIES[problem.telling % len(_STORIES)]


def _add(first: int, second: int) -> list[str]:
    lines, carry = [], 0
    digits = list(zip(reversed(str(first)), reversed(str(second)), strict=True))
    for place, (one, two) in enumerate(digits):
        result = int(one) + int(two) + carry
        left = f"{one} + {two} + {carry}" if carry else f"{one} + {two}"
        top = place == len(digits) - 1
        carry = result // 10
        end = f"write {result}." if top else f"write {result % 10}, carry {carry}."
        lines.append(f"{left} = {result}, {end}")
    return lines


def _two_steps(problem: Problem) -> list[str]:
    first, boxes, each = problem.numbers
    tens, ones = each // 10 * 10, each % 10
    product = boxes * each
    lines = [f"{boxes} * {tens} = {boxes * tens}."]
    if ones:
        lines += [f"{boxes} * {ones} = {boxes * ones}.", f"{boxes * tens} + {boxes * ones} = {product}."]
    sign = "+" if _story(problem)[1] > 0 else "-"
    return [*lines, f"{product} {sign} {first} = {answer(problem)}."]
