"""Parameters of voting methods, as they are written in a method string: words, whole numbers or numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dttrl.errors import InputError

Value = str | int | float


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its default, the words that it may be and, where it may be a number, in what range.

    ``above`` is an open lower bound, ``least`` and ``most`` are closed ones.

    >>> Parameter(0.1, "share", number="float", above=0, most=1).form
    'number above 0, at most 1'
    >>> Parameter("adaptive", "size", words=("adaptive", "sqrt"), number="int", above=0).form
    'adaptive|sqrt|whole number above 0'
    """

    default: Value
    meaning: str
    words: tuple[str, ...] = ()
    number: Literal["", "int", "float"] = ""
    above: float = -math.inf
    least: float = -math.inf
    most: float = math.inf

    @property
    def form(self) -> str:
        """What may be written for it."""
        parts = list(self.words)
        if self.number:
            text = "whole number" if self.number == "int" else "number"
            bounds = [f"above {self.above:g}"] if self.above > -math.inf else []
            bounds += [f"at least {self.least:g}"] if self.least > -math.inf else []
            bounds += [f"at most {self.most:g}"] if self.most < math.inf else []
            parts.append(" ".join([text, ", ".join(bounds)]).strip())
        return "|".join(parts)

    def parse(self, text: str) -> Value:
        """Read a value; raises ValueError where ``text`` is none."""
        if text in self.words:
            return text
        if not self.number:
            raise ValueError(text)
        value: int | float = int(text) if self.number == "int" else float(text)
        if not (math.isfinite(value) and self.above < value and self.least <= value <= self.most):
            raise ValueError(text)
        return value


def words(default: str, *others: str, meaning: str) -> Parameter:
    """Return a parameter that is one of some words."""
    return Parameter(default, meaning, words=(default, *others))


def parse_parameters(method: str, text: str, known: dict[str, Parameter]) -> dict[str, Value]:
    """Read ``name=value,...``; raises :class:`InputError` that names what is unknown and what there is."""
    chosen = {name: parameter.default for name, parameter in known.items()}
    for item in filter(None, text.split(",")):
        name, _, value = (part.strip() for part in item.partition("="))
        if name not in known:
            there = ", ".join(known) or "none"
            raise InputError(f"method {method!r} has no parameter {name!r} (it has: {there})")
        try:
            chosen[name] = known[name].parse(value)
        except ValueError:
            form = known[name].form
            allowed = form if known[name].number else form.replace("|", ", ")
            raise InputError(f"method {method!r}: {name}={value!r} is not one of: {allowed}") from None
    return chosen
