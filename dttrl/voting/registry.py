"""Voting methods by name, for saved rollouts: ``distrivoting:f=hierarchical,reject=guarded``.

A method is a function from ``(class_RN, confidence_RN)`` to a :class:`VoteOutcome`; confidences are vote
weights already (not negative). Adding one is a module beside this and a line in :data:`METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dttrl.errors import InputError
from dttrl.mixture import Mixtures, fit_mixtures
from dttrl.voting.distrivoting import REJECTS, VOTE_FUNCTIONS, DistriVote, distrivoting
from dttrl.voting.election import FloatArray, IntArray, Vote
from dttrl.voting.majority import majority
from dttrl.voting.weighted import weighted


class VoteOutcome(NamedTuple):
    """A vote with, for methods that filter, what the filter did and the mixtures it used."""

    vote: Vote
    distrivote: DistriVote | None = None
    mixtures: Mixtures | None = None


VoteMethod = Callable[[IntArray, FloatArray], VoteOutcome]


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A voting method: what it is, whether it needs confidences, and its parameters with their choices."""

    name: str
    summary: str
    build: Callable[[Mapping[str, str]], VoteMethod]
    needs_confidence: bool = True
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Allowed values by parameter; the first is the default."""


def _majority(_: Mapping[str, str]) -> VoteMethod:
    return lambda class_RN, confidence_RN: VoteOutcome(majority(class_RN, confidence_RN))


def _weighted(_: Mapping[str, str]) -> VoteMethod:
    return lambda class_RN, confidence_RN: VoteOutcome(weighted(class_RN, confidence_RN))


def _distrivoting(parameters: Mapping[str, str]) -> VoteMethod:
    def vote(class_RN: IntArray, confidence_RN: FloatArray) -> VoteOutcome:
        # The mixture of a question is that of its answered rollouts, as in DistriVoting's Algorithm 1.
        answered_RN = confidence_RN.copy()
        answered_RN[class_RN < 0] = float("nan")
        mixtures = fit_mixtures(answered_RN)
        outcome = distrivoting(
            class_RN,
            confidence_RN,
            mixtures,
            f_vote=parameters["f"],  # type: ignore[arg-type]
            reject=parameters["reject"],  # type: ignore[arg-type]
            refit=parameters["refit"] == "yes",
            monotone=parameters["monotone"] == "yes",
        )
        return VoteOutcome(outcome.vote, outcome, mixtures)

    return vote


METHODS: dict[str, MethodInfo] = {
    info.name: info
    for info in (
        MethodInfo(
            "sc", "majority vote (self-consistency, arXiv:2203.11171)", _majority, needs_confidence=False
        ),
        MethodInfo("wsc", "confidence-weighted vote (arXiv:2206.02336)", _weighted),
        MethodInfo(
            "distrivoting",
            "mixture filter, reject, vote (DistriVoting, arXiv:2603.03872)",
            _distrivoting,
            parameters={
                "f": ("hierarchical", *(name for name in VOTE_FUNCTIONS if name != "hierarchical")),
                "reject": REJECTS,
                "refit": ("yes", "no"),
                "monotone": ("no", "yes"),
            },
        ),
    )
}


def parse_method(text: str) -> tuple[MethodInfo, VoteMethod]:
    """Build a method from ``name`` or ``name:parameter=value,...``.

    Raises :class:`InputError` that names what is unknown and what there is.
    """
    name, _, rest = text.strip().partition(":")
    if name not in METHODS:
        raise InputError(f"voting method {name!r} is not one of: {', '.join(METHODS)}")
    info = METHODS[name]
    chosen = {parameter: choices[0] for parameter, choices in info.parameters.items()}
    for item in filter(None, rest.split(",")):
        parameter, _, value = item.partition("=")
        if parameter not in chosen:
            known = ", ".join(chosen) or "none"
            raise InputError(f"method {name!r} has no parameter {parameter!r} (it has: {known})")
        if value not in info.parameters[parameter]:
            known = ", ".join(info.parameters[parameter])
            raise InputError(f"method {name!r}: {parameter}={value!r} is not one of: {known}")
        chosen[parameter] = value
    return info, info.build(chosen)
