"""The methods of training, each a row of choices, and the settings of the training signal.

=================  ===============  ===================  =================
name               vote             progressive history  diversity penalty
=================  ===============  ===================  =================
``ttrl``           ``sc``           no                   no
``ttrl-gt``        the gold class   no                   no
``ttrl-wsc``       ``wsc``          no                   no
``distri-wsc``     ``wsc``          no                   yes
``distri-gmm``     ``progressive``  yes                  yes
``ttrl-latent``    ``latent``       yes                  no
``distri-latent``  ``latent``       yes                  yes
=================  ===============  ===================  =================

All but the last two are those of the paper's main table.
The vote is a strategy of :mod:`dttrl.method.voting.registry`, as ``dttrl vote --method`` takes it, so every
strategy there is a way to label.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dttrl.errors import InputError
from dttrl.method.ballots import FloatArray
from dttrl.method.history import History
from dttrl.method.measure_choice import MeasuredPast, Past
from dttrl.method.partition import Centre
from dttrl.method.past_sums import PastSums
from dttrl.method.selection import Select
from dttrl.method.voting.registry import METHODS as VOTES
from dttrl.method.voting.registry import Memory, ParsedMethod, parse_method, spelled
from dttrl.ranges import NO_RANGE, STEADY, SURE, Count, SampleRange, Threshold, least, most, with_threshold
from dttrl.section import Section, flag

GOLD = "gold"
"""The vote of the method that is told the answer; no strategy, as it needs more than the rollouts."""

EARLIER_DEFAULT = "distri-gmm"
"""The method of earlier releases where none was named: their settings and digests that name none mean it."""

DiversityOver = Literal["voted", "trained"]


@dataclass(frozen=True, slots=True)
class Method:
    """Where labels come from, whether past steps help, and whether uniform questions count less."""

    name: str
    vote: str
    history: bool
    diversity: bool
    summary: str


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("ttrl", "sc", False, False, "majority vote (TTRL, arXiv:2504.16084)"),
        Method("ttrl-gt", GOLD, False, False, "the gold answer: the upper bound, not label-free"),
        Method("ttrl-wsc", "wsc", False, False, "confidence-weighted vote"),
        Method("distri-wsc", "wsc", False, True, "confidence-weighted vote, diversity penalty"),
        Method(
            "distri-gmm",
            "progressive",
            True,
            True,
            "DistriTTRL: progressive distribution, diversity penalty",
        ),
        Method("ttrl-latent", "latent", True, False, "latent-answer vote with history"),
        Method("distri-latent", "latent", True, True, "latent-answer vote with history, diversity penalty"),
    )
}


def find_method(name: str) -> Method:
    """Return the method of that name; raises :class:`InputError` with the names there are."""
    try:
        return METHODS[name]
    except KeyError:
        raise InputError(f"method {name!r} is not one of: {', '.join(METHODS)}") from None


def titled(method: str, label: str | None) -> str:
    """Return how a method is shown: with the vote that labels, where that is not the method's own.

    >>> titled("distri-gmm", "mob"), titled("ttrl", "sc")
    ('distri-gmm, labels by mob', 'ttrl')
    """
    own = METHODS.get(method)
    return method if label is None or (own and own.vote == label) else f"{method}, labels by {label}"


class Signal(Section):
    """How a step's rollouts become labels and weights; the sizes are the paper's."""

    panel: ClassVar[str] = "Method"

    method: str = Field(
        "distri-latent",
        description=f"Where labels and weights come from: {', '.join(METHODS)}.",
    )
    label: str | None = Field(
        None,
        description="Vote that elects the labels, as in dttrl vote --method: sc, wsc, mob, "
        "progressive:min=3,window=5 (default: the method's).",
    )
    count: Count = Field(
        64,
        alias="votes",
        description="Rollouts of a question that vote: a number, or a range 16..64, from which a question "
        "takes as many blocks of 16 as it needs to be sure.",
    )
    until: Threshold = Field(
        None,
        description="With a range of --votes: a question stops when its most probable answer is right with "
        f"this probability, at every look over its last {STEADY} rollouts (default with a range: {SURE:g}).",
    )
    train_samples: int = Field(32, ge=1, description="Voting rollouts that are trained on.")
    select: Select = Field(
        "first",
        description="Which voting rollouts are trained on: first (in sample order) or balanced (as near to "
        "half rewarded and half not as there are).",
    )
    tau: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Diversity penalty: questions with at most this share of different answers count less.",
    )
    diversity_over: DiversityOver = Field(
        "voted", description="Rollouts whose different answers the penalty counts."
    )
    centre: Centre = Field(
        "none",
        description="question: take each question's mean from its confidences before distri-gmm splits them "
        "(not in the paper).",
    )
    shift_correction: bool = Field(
        True,
        description="Move the confidences of past steps to where the current step's lie; without it "
        "distri-gmm pools them as they were measured (an ablation).",
    )

    weigh_labels: bool = Field(
        False,
        description="Scale a question's advantages by the probability that its label is right; a label less "
        "probable than one half teaches nothing (labels by latent).",
    )

    @field_validator("method")
    @classmethod
    def _method(cls, value: str) -> str:
        return find_method(value).name

    @field_validator("label")
    @classmethod
    def _label(cls, value: str | None) -> str | None:
        return None if value is None else spelled(parse_method(value))

    @model_validator(mode="before")
    @classmethod
    def _sure(cls, given: Any) -> Any:
        return with_threshold(given, "votes")

    @model_validator(mode="after")
    def _consistent(self) -> Signal:
        fewest = least(self.count)
        if self.train_samples > fewest:
            lowest = f"{fewest}, the least of {self.count}" if fewest < self.votes else fewest
            raise ValueError(
                f"train-samples ({self.train_samples}) must be at most votes ({lowest}): "
                "rollouts are trained on out of those that vote"
            )
        if self.label is not None and self.row.vote == GOLD:
            raise ValueError(f"method {self.method} labels with gold answers; leave --label out")
        return self

    @property
    def row(self) -> Method:
        """The method's row of choices."""
        return METHODS[self.method]

    @property
    def votes(self) -> int:
        """Rollouts of a question that vote, at most."""
        return most(self.count)

    @property
    def title(self) -> str:
        """How the method is shown to people."""
        return titled(self.method, self.label)

    @property
    def vote(self) -> ParsedMethod | None:
        """The strategy that elects the labels; None where they are the gold answers."""
        return None if self.row.vote == GOLD else parse_method(self.label or self.row.vote)

    def empty_memory(self) -> Memory:
        """Return what the vote remembers before the first step."""
        memory = (self.vote.memory() if self.vote is not None else None) or History()
        if isinstance(memory, History):
            memory = replace(memory, shift_correction=self.shift_correction)
        return memory

    def history(self, arrays: Mapping[str, FloatArray] | None = None) -> Past:
        """Return the history that a run begins with, or the one that ``arrays`` hold."""
        memory = self.empty_memory()
        if arrays is None:
            return memory
        return (MeasuredPast(memory) if MeasuredPast.is_in(arrays) else memory).restored(arrays)

    def unread(self) -> Mapping[str, Collection[str]]:
        """Return what neither the vote nor the penalty of this method reads."""
        found: dict[str, Collection[str]] = {}
        vote = self.vote
        memory = None if vote is None else vote.memory()
        useless = [] if isinstance(memory, History) else ["centre", "shift_correction"]
        useless += [] if isinstance(memory, PastSums) else ["weigh_labels"]
        label = GOLD if vote is None else spelled(vote)
        found[f"labels by {label} (--method {self.method})"] = useless
        if not isinstance(self.count, SampleRange):
            found[NO_RANGE.format("votes")] = ("until",)
        if not self.row.diversity:
            found[f"--method {self.method}, which has no diversity penalty"] = ("tau", "diversity_over")
        return found

    @classmethod
    def adopt(cls, flat: Mapping[str, Any], *, lenient: bool) -> dict[str, Any]:
        """Return the settings with those of :data:`OLDER` as parameters of the label."""
        kept = {name: value for name, value in flat.items() if name not in OLDER}
        given = []
        for name, parameter in OLDER.items():
            default = VOTES["progressive"].parameters[parameter].default
            if name in flat and (text := _word(flat[name])) != str(default):
                given.append((name, f"{parameter}={text}"))
        if not given:
            return kept
        kept.setdefault("method", EARLIER_DEFAULT)
        method = METHODS.get(str(kept["method"]))
        if method is None:
            return kept
        label = str(kept.get("label") or method.vote)
        if label.partition(":")[0] != "progressive":
            if lenient:
                return kept
            raise ValueError(f"{flag(given[0][0])} does nothing with labels by {label}; leave it out")
        separator = "," if ":" in label else ":"
        return {**kept, "label": f"{label}{separator}{','.join(text for _, text in given)}"}


OLDER = {
    "f_vote": "f",
    "reject": "reject",
    "monotone": "monotone",
    "min_positives": "min",
    "history_window": "window",
}
"""Settings of earlier releases, and the parameters of the vote ``progressive`` that replace them."""


def _word(value: object) -> str:
    """Return a value as a parameter of a vote has it.

    >>> [_word(value) for value in (True, None, 3, "off")]
    ['yes', 'all', '3', 'off']
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "all" if value is None or value == "none" else str(value)
