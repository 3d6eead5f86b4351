"""The methods of the paper's main table, each a row of choices.

==============  ==============  ===================  =================
name            label           progressive history  diversity penalty
==============  ==============  ===================  =================
``ttrl``        majority        no                   no
``ttrl-gt``     ground truth    no                   no
``ttrl-wsc``    weighted        no                   no
``distri-wsc``  weighted        no                   yes
``distri-gmm``  distrivoting    yes                  yes
==============  ==============  ===================  =================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dttrl.errors import InputError

LabelStrategy = Literal["majority", "weighted", "distrivoting", "ground-truth"]


@dataclass(frozen=True, slots=True)
class Method:
    """Where labels come from, whether past steps help, and whether uniform questions count less."""

    name: str
    label: LabelStrategy
    progressive: bool
    diversity: bool
    summary: str


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("ttrl", "majority", False, False, "majority vote (TTRL, arXiv:2504.16084)"),
        Method("ttrl-gt", "ground-truth", False, False, "the gold answer: the upper bound, not label-free"),
        Method("ttrl-wsc", "weighted", False, False, "confidence-weighted vote"),
        Method("distri-wsc", "weighted", False, True, "confidence-weighted vote, diversity penalty"),
        Method(
            "distri-gmm",
            "distrivoting",
            True,
            True,
            "DistriTTRL: progressive distribution, diversity penalty",
        ),
    )
}


def find_method(name: str) -> Method:
    """Return the method of that name; raises :class:`InputError` with the names there are."""
    try:
        return METHODS[name]
    except KeyError:
        raise InputError(f"method {name!r} is not one of: {', '.join(METHODS)}") from None
