"""Voting methods by name, for saved rollouts: ``distrivoting:f=hierarchical,reject=guarded``.

A method is a function from ``(class_RN, confidence_RN)`` to a :class:`VoteOutcome`. Adding one is a module
beside this and an entry of :data:`METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from dttrl.errors import InputError
from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.history import History
from dttrl.method.latent import Latent, fit_latent, summed
from dttrl.method.mixture import Mixture, Mixtures, fit_mixture, fit_mixtures
from dttrl.method.past_sums import PastSums
from dttrl.method.voting.best_of_n import best_of_n
from dttrl.method.voting.borda import POWER, borda
from dttrl.method.voting.deepconf import TOP, deepconf
from dttrl.method.voting.distrivoting import REJECTS, VOTE_FUNCTIONS, DistriVote, distrivoting
from dttrl.method.voting.election import Vote
from dttrl.method.voting.latent_vote import latent_vote, latent_votes
from dttrl.method.voting.majority import majority
from dttrl.method.voting.mob import RATIO, mob
from dttrl.method.voting.parameters import Parameter, Value, parse_parameters, words
from dttrl.method.voting.weighted import weighted

Pool = Mixture | Mixtures | Latent
"""What a pooled method votes under."""


class VoteOutcome(NamedTuple):
    """A vote with, for methods that filter, what the filter did and the mixtures it used."""

    vote: Vote
    distrivote: DistriVote | None = None
    mixtures: Mixtures | Mixture | None = None
    probability_R: FloatArray | None = None
    """Probability that each winner is right, NaN without one; of methods that say."""


class VoteMethod(Protocol):
    """How a method is called.

    ``weight_RN`` are the confidences as weights: what is summed, ranked and breaks ties. For methods that
    vote under what was fitted to more than these questions, ``pool`` is that fit and ``confidence_RN``
    (default: the weights) what it is applied to.
    """

    def __call__(
        self,
        class_RN: IntArray,
        weight_RN: FloatArray,
        pool: Pool | None = None,
        confidence_RN: FloatArray | None = None,
        /,
    ) -> VoteOutcome:
        """Vote on R questions of N rollouts each."""


Parameters = Mapping[str, Any]
ManyVotes = Callable[[IntArray, FloatArray], Vote]
"""From classes and confidences (F, R, N) to a vote (F * R,)."""
Memory = History | PastSums
"""What a pooled method keeps of the steps before."""


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A voting method: what it is, what it needs, and its parameters."""

    name: str
    summary: str
    build: Callable[[Parameters], VoteMethod]
    needs_confidence: bool = True
    any_sign: bool = False
    """Confidences may be negative: only their order or their differences count."""
    memory: Callable[[Parameters], Memory] | None = None
    """Makes the empty history of a pooled method, one that votes under a fit to all questions of a step and
    of the steps before."""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    build_many: Callable[[Parameters], ManyVotes] | None = None
    """Builds the vote of a pooled method on F pools of R questions at once, where there is one."""

    @property
    def pooled(self) -> bool:
        """Whether it votes on all questions of a step together."""
        return self.memory is not None


class ParsedMethod(NamedTuple):
    """A method with its parameters."""

    info: MethodInfo
    vote: VoteMethod
    parameters: dict[str, Value]

    @property
    def needs_weights(self) -> bool:
        """Whether confidences are summed as vote weights and so must not be negative."""
        heads = self.parameters.get("f") == "majority"
        return self.info.needs_confidence and not self.info.any_sign and not heads

    def memory(self) -> Memory | None:
        """Return the empty history of a pooled method, None for others."""
        return None if self.info.memory is None else self.info.memory(self.parameters)


def _simple(vote: Callable[..., Vote], **names: str) -> Callable[[Parameters], VoteMethod]:
    """Build methods that return a :class:`Vote`; ``names`` maps keyword to parameter."""

    def build(parameters: Parameters) -> VoteMethod:
        keywords = {keyword: parameters[name] for keyword, name in names.items()}

        def method(class_RN: IntArray, weight_RN: FloatArray, *_: object) -> VoteOutcome:
            return VoteOutcome(vote(class_RN, weight_RN, **keywords))

        return method

    return build


def _filter_choices(parameters: Parameters) -> dict[str, Any]:
    """Return what the two votes by mixture have in common, as keywords."""
    return {
        "f_vote": parameters["f"],
        "reject": parameters["reject"],
        "monotone": parameters["monotone"] == "yes",
        "min_positives": parameters["min"],
    }


def _distrivoting(parameters: Parameters) -> VoteMethod:
    def vote(class_RN: IntArray, confidence_RN: FloatArray, *_: object) -> VoteOutcome:
        # The mixture of a question is that of its answered rollouts, as in DistriVoting's Algorithm 1.
        answered_RN = confidence_RN.copy()
        answered_RN[class_RN < 0] = float("nan")
        mixtures = fit_mixtures(answered_RN)
        refit = parameters["refit"] == "yes"
        outcome = distrivoting(class_RN, confidence_RN, mixtures, refit=refit, **_filter_choices(parameters))
        return VoteOutcome(outcome.vote, outcome, mixtures)

    return vote


def _progressive(parameters: Parameters) -> VoteMethod:
    """Build the vote of training (alg:pseudo_label): one mixture for all questions of a step.

    Unlike ``distrivoting``, whose mixture is a question's own, it votes under the mixture of a pool: the step
    and its shift-corrected past (:mod:`dttrl.method.history`) or, for rollouts that no training made, all
    confidences at once.
    """

    def vote(
        class_RN: IntArray,
        weight_RN: FloatArray,
        pool: Pool | None = None,
        confidence_RN: FloatArray | None = None,
        /,
    ) -> VoteOutcome:
        assert not isinstance(pool, Latent)
        split_RN = weight_RN if confidence_RN is None else confidence_RN
        if pool is None:
            pool = fit_mixture(split_RN[np.isfinite(split_RN)])
        outcome = distrivoting(class_RN, split_RN, pool, weight_RN=weight_RN, **_filter_choices(parameters))
        return VoteOutcome(outcome.vote, outcome, pool)

    return vote


def _latent(parameters: Parameters) -> VoteMethod:
    """Build the latent-answer vote: the questions are voted on under one fit to all of them, or to a pool."""

    def vote(
        class_RN: IntArray,
        weight_RN: FloatArray,
        pool: Pool | None = None,
        confidence_RN: FloatArray | None = None,
        /,
    ) -> VoteOutcome:
        contrasted_RN = weight_RN if confidence_RN is None else confidence_RN
        if pool is None:
            pool = fit_latent(summed(class_RN, contrasted_RN), **_priors(parameters))
        assert isinstance(pool, Latent)
        result, probability_R = latent_vote(class_RN, contrasted_RN, pool)
        return VoteOutcome(result, probability_R=probability_R)

    return vote


def _latent_many(parameters: Parameters) -> ManyVotes:
    return lambda class_FRN, confidence_FRN: latent_votes(class_FRN, confidence_FRN, **_priors(parameters))[0]


def _priors(parameters: Parameters) -> dict[str, Any]:
    """Return what the options of the latent-answer vote fix; None: estimated."""
    return {name: _number(parameters[key]) for name, key in (("power", "lambda"), ("none", "none"))}


def _number(value: Value) -> Any:
    return None if isinstance(value, str) else value


_F = "vote among those that are left"
_REJECT = words(*REJECTS, meaning="drop the positives that answer as the negatives elect")
_MONOTONE = words("no", "yes", meaning="surer than the positive mean is always positive")
_MIN = Parameter(1, "fewest positives that may decide; with fewer: majority", number="int", least=1)


def _window(default: Value) -> Parameter:
    return Parameter(default, "past steps in the pool", words=("all",), number="int", above=-1)


METHODS: dict[str, MethodInfo] = {
    info.name: info
    for info in (
        MethodInfo(
            "sc",
            "majority vote (self-consistency, arXiv:2203.11171)",
            _simple(majority),
            needs_confidence=False,
        ),
        MethodInfo("wsc", "confidence-weighted vote (arXiv:2206.02336)", _simple(weighted)),
        MethodInfo("bon", "answer of the surest rollout (best of N)", _simple(best_of_n), any_sign=True),
        MethodInfo(
            "mob",
            "mode of best-of-m over bootstraps, in closed form (arXiv:2511.18630)",
            _simple(mob, m="m", ratio="q"),
            any_sign=True,
            parameters={
                "m": Parameter(
                    "adaptive", "bootstrap size", words=("adaptive", "sqrt"), number="int", above=0
                ),
                "q": Parameter(
                    RATIO, "ratio of the sizes tried by adaptive", number="float", above=0, most=0.99
                ),
            },
        ),
        MethodInfo(
            "deepconf",
            "confidence-weighted vote of the surest share (DeepConf, arXiv:2508.15260)",
            _simple(deepconf, top="top", f_vote="f"),
            parameters={
                "top": Parameter(TOP, "share that votes", number="float", above=0, most=1),
                "f": words("weighted", "majority", meaning=_F),
            },
        ),
        MethodInfo(
            "borda",
            "Borda vote by rank of confidence (self-certainty, arXiv:2502.18581)",
            _simple(borda, p="p"),
            any_sign=True,
            parameters={
                "p": Parameter(POWER, "power of the rank; 0: majority", number="float", least=0, most=100)
            },
        ),
        MethodInfo(
            "distrivoting",
            "mixture filter, reject, vote (DistriVoting, arXiv:2603.03872)",
            _distrivoting,
            parameters={
                "f": words("hierarchical", *(n for n in VOTE_FUNCTIONS if n != "hierarchical"), meaning=_F),
                "reject": _REJECT,
                "refit": words("yes", "no", meaning="fit again after the reject"),
                "monotone": _MONOTONE,
                "min": _MIN,
            },
        ),
        MethodInfo(
            "progressive",
            "vote of training: mixture of the step and its shifted past (alg:pseudo_label)",
            _progressive,
            memory=lambda parameters: History(window=_number(parameters["window"])),
            parameters={
                "f": words(*VOTE_FUNCTIONS, meaning=_F),
                "reject": _REJECT,
                "monotone": _MONOTONE,
                "min": _MIN,
                "window": _window("all"),
            },
        ),
        MethodInfo(
            "latent",
            "the most probable answer when rollouts of one answer are right together",
            _latent,
            needs_confidence=False,
            any_sign=True,
            memory=lambda parameters: PastSums(window=_number(parameters["window"]), **_priors(parameters)),
            parameters={
                "lambda": Parameter(
                    "auto",
                    "prior proportional to votes^lambda; auto: estimated from how votes split",
                    words=("auto",),
                    number="float",
                    above=0,
                    most=100,
                ),
                "none": Parameter(
                    "auto",
                    "prior probability that no answer is right; auto: estimated",
                    words=("auto",),
                    number="float",
                    above=0,
                    most=0.99,
                ),
                "window": _window(100),
            },
            build_many=_latent_many,
        ),
    )
}


def parse_method(text: str) -> ParsedMethod:
    """Build a method from ``name`` or ``name:parameter=value,...``.

    Raises :class:`InputError` that names what is unknown and what there is.
    """
    name, _, rest = text.strip().partition(":")
    if name not in METHODS:
        raise InputError(f"voting method {name!r} is not one of: {', '.join(METHODS)}")
    info = METHODS[name]
    chosen = parse_parameters(name, rest, info.parameters)
    return ParsedMethod(info, info.build(chosen), chosen)


def spelled(method: ParsedMethod) -> str:
    """Return a method as it may be given again, parameters at their default left out.

    >>> spelled(parse_method("progressive: min=3, f=majority"))
    'progressive:min=3'
    """
    changed = [
        f"{name}={value}"
        for name, value in method.parameters.items()
        if value != method.info.parameters[name].default
    ]
    return ":".join([method.info.name, *([",".join(changed)] if changed else [])])
