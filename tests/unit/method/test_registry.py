from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dttrl.errors import InputError
from dttrl.method.mixture import fit_mixtures
from dttrl.method.partition import assign_positive
from dttrl.method.voting.distrivoting import distrivoting
from dttrl.method.voting.majority import majority
from dttrl.method.voting.registry import METHODS, VoteOutcome, parse_method
from dttrl.method.voting.weighted import weighted

RNG = np.random.default_rng(0)
RIGHT = RNG.random((40, 24)) < 0.5
CLASSES = np.where(RIGHT & (RNG.random((40, 24)) < 0.7), 0, RNG.integers(-1, 4, (40, 24))).astype(np.int32)
CONFIDENCE = np.where(RIGHT, RNG.normal(8, 0.7, (40, 24)), RNG.normal(4, 0.7, (40, 24)))


def outcome(text: str) -> VoteOutcome:
    return parse_method(text)[1](CLASSES, CONFIDENCE)


def same(one: VoteOutcome, other: VoteOutcome) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one.vote, other.vote, strict=True))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_works_by_its_name_with_the_default_of_each_parameter(name: str) -> None:
    info = parse_method(name).info
    assert info is METHODS[name]
    assert info.summary
    defaults = ",".join(f"{key}={parameter.default}" for key, parameter in info.parameters.items())
    assert same(outcome(name), outcome(f" {name}:{defaults} "))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_value_of_every_parameter_works(name: str) -> None:
    parameters = METHODS[name].parameters
    numbers = {"m": ("1", "24"), "q": ("0.5",), "top": ("0.01", "1"), "p": ("0", "3"), "window": ("0", "3")}
    choices = [parameter.words + numbers.get(key, ()) for key, parameter in parameters.items()]
    for values in product(*choices):
        text = ",".join(f"{parameter}={value}" for parameter, value in zip(parameters, values, strict=True))
        assert (outcome(f"{name}:{text}").vote.winner_R >= 0).all()


def test_sc_and_wsc_are_the_plain_votes() -> None:
    np.testing.assert_array_equal(outcome("sc").vote.winner_R, majority(CLASSES, CONFIDENCE).winner_R)
    np.testing.assert_array_equal(outcome("wsc").vote.winner_R, weighted(CLASSES, CONFIDENCE).winner_R)
    assert outcome("sc").distrivote is None
    assert not METHODS["sc"].needs_confidence
    assert METHODS["wsc"].needs_confidence


def test_parameters_reach_the_vote() -> None:
    """Each differs somewhere from the default on these data."""
    mixtures = fit_mixtures(np.where(CLASSES >= 0, CONFIDENCE, np.nan))
    direct = distrivoting(CLASSES, CONFIDENCE, mixtures, f_vote="majority", reject="always")
    found = outcome("distrivoting:f=majority,reject=always,refit=no")
    assert found.distrivote is not None
    np.testing.assert_array_equal(found.distrivote.rejected_R, direct.rejected_R)
    np.testing.assert_array_equal(found.vote.winner_R, direct.vote.winner_R)
    others = [
        "f=weighted,reject=always,refit=no",
        "f=majority,reject=off,refit=no",
        "f=majority,reject=always,refit=yes",
    ]
    for other in others:
        assert not same(found, outcome(f"distrivoting:{other}")), other


def test_the_mixture_of_a_question_is_that_of_its_answered_rollouts() -> None:
    found = outcome("distrivoting")
    assert found.mixtures is not None
    np.testing.assert_array_equal(found.mixtures.n, (CLASSES >= 0).sum(axis=1))


def test_refit_by_hand() -> None:
    """After the reject, all rollouts that are left are fitted again, and the new positives vote."""
    found = outcome("distrivoting:f=majority,reject=guarded,refit=yes")
    assert found.mixtures is not None
    positive = assign_positive(CONFIDENCE, found.mixtures) & (CLASSES >= 0)
    seen = 0
    for r in range(len(CLASSES)):
        row, inside = CLASSES[r], positive[r]
        first, wrong = (
            int(np.bincount(row[voters], minlength=4).argmax()) for voters in (inside, ~inside & (row >= 0))
        )
        counts = [np.bincount(row[voters], minlength=4) for voters in (inside, ~inside & (row >= 0))]
        if any((c == c.max()).sum() > 1 for c in counts) or first == wrong:
            continue
        left = (row >= 0) & (row != wrong)
        again = fit_mixtures(np.where(left, CONFIDENCE[r], np.nan)[None, :])
        kept = assign_positive(CONFIDENCE[r : r + 1], again)[0] & left
        if again.is_degenerate[0] or not kept.any():
            kept = inside & (row != wrong)
        final = np.bincount(row[kept], minlength=4)
        if (final == final.max()).sum() == 1:
            seen += 1
            assert found.vote.winner_R[r] == final.argmax()
    assert seen > 10


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "voting method '' is not one of: sc, wsc, bon, mob, deepconf, borda, dist"),
        ("SC", "voting method 'SC' is not one of"),
        ("sc:f=majority", "method 'sc' has no parameter 'f' .it has: none"),
        (
            "distrivoting:g=1",
            "method 'distrivoting' has no parameter 'g' .it has: f, reject, refit, monotone, min",
        ),
        (
            "distrivoting:f=mean",
            "method 'distrivoting': f='mean' is not one of: hierarchical, majority, weighted",
        ),
        ("distrivoting:f", "method 'distrivoting': f='' is not one of"),
        ("distrivoting:reject=never", "reject='never' is not one of: guarded, always, off"),
        ("distrivoting f=majority", "is not one of: sc"),
        ("deepconf:top=0", "method 'deepconf': top='0' is not one of: number above 0, at most 1"),
        ("deepconf:top=1.5", "top='1.5' is not one of"),
        ("deepconf:top=nan", "top='nan' is not one of"),
        ("mob:m=0", r"m='0' is not one of: adaptive.sqrt.whole number above 0"),
        ("mob:m=2.5", "m='2.5' is not one of"),
        ("mob:q=1", "q='1' is not one of: number above 0, at most 0.99"),
        ("borda:p=-1", "p='-1' is not one of: number at least 0, at most 100"),
    ],
)
def test_bad_methods_name_what_there_is(text: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        parse_method(text)


def test_what_only_ranks_may_be_negative_and_what_sums_may_not() -> None:
    free = {name for name in METHODS if not parse_method(name).needs_weights}
    assert free == {"sc", "bon", "mob", "borda", "progressive", "latent"}
    assert not parse_method("distrivoting:f=majority").needs_weights
    assert parse_method("progressive:f=weighted").needs_weights
    for name in ("bon", "mob", "borda"):
        moved = parse_method(name).vote(CLASSES, CONFIDENCE - 100)
        np.testing.assert_array_equal(moved.vote.winner_R, outcome(name).vote.winner_R)


def test_a_stray_comma_is_nothing() -> None:
    assert same(outcome("distrivoting:f=majority,"), outcome("distrivoting:f=majority"))
