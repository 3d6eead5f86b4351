"""The latent-answer vote on data that say little, in other units and in another order."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from dttrl.method.ballots import FloatArray, IntArray
from dttrl.method.latent import (
    LEAST_DOUBT,
    Latent,
    Sums,
    fit_latent,
    fit_latents,
    posterior,
    summed,
    surprise,
)
from dttrl.method.voting.latent_vote import latent_votes
from dttrl.method.voting.registry import VoteOutcome, parse_method
from tests.latent_draws import Draws, draw


@pytest.fixture(scope="module")
def drawn() -> Draws:
    return draw(3, 60, 12)


def latent(class_RN: IntArray, confidence_RN: FloatArray, options: str = "") -> VoteOutcome:
    return parse_method(f"latent:{options}" if options else "latent").vote(class_RN, confidence_RN)


def assert_plain(class_RN: IntArray, confidence_RN: FloatArray, options: str = "") -> FloatArray:
    """The vote is the majority's to the last tie; returns the probabilities."""
    outcome = latent(class_RN, confidence_RN, options)
    plain = parse_method("sc").vote(class_RN, confidence_RN).vote
    assert outcome.vote.winner_R.tolist() == plain.winner_R.tolist()
    assert outcome.vote.tie_R.tolist() == plain.tie_R.tolist()
    probability_R = outcome.probability_R
    assert probability_R is not None
    assert (np.isnan(probability_R) == (plain.winner_R < 0)).all()
    known = probability_R[plain.winner_R >= 0]
    assert ((known >= 0) & (known <= 1)).all()
    return probability_R


def classes(*rows: list[int]) -> IntArray:
    return np.array(rows, dtype=np.int32)


NOTHING_TO_TELL = {
    "one class": (classes([0, 0, 0], [0, 0, 0]), np.array([[1.0, 2, 3], [5, 1, 2]])),
    "one rollout": (classes([0], [0], [-1]), np.array([[1.0], [2.0], [3.0]])),
    "no answer": (classes([-1, -1], [-1, -1]), np.array([[1.0, 2], [3, 4]])),
    "one without an answer": (classes([-1, -1], [0, 0]), np.array([[1.0, 2], [3, 4]])),
    "all equal": (classes([0, 1, 1, 0], [0, 1, 2, 2]), np.full((2, 4), 7.0)),
    "no confidence": (classes([0, 1, 1, 0], [0, 1, 2, 2]), np.full((2, 4), np.nan)),
    "infinite": (classes([0, 1, 1, 0], [0, 1, 2, 2]), np.full((2, 4), np.inf)),
    "known of one class": (
        classes([0, 1, 1, 0], [0, 1, 2, 2]),
        np.array([[1.0, np.nan, np.nan, 2], [np.nan, np.nan, 3, 4]]),
    ),
    "one question": (classes([0, 1, 1, 0]), np.array([[1.0, 2, 3, 4]])),
    "one question of one rollout": (classes([0]), np.array([[1.0]])),
    "more than one vote a class nowhere": (classes([0, 1, 2], [0, 1, 2]), np.array([[1.0, 2, 9], [4, 6, 5]])),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", ["", "lambda=2", "none=0.1", "lambda=2,none=0.3"])
@pytest.mark.parametrize("case", NOTHING_TO_TELL)
def test_where_confidence_tells_nothing_the_vote_is_the_plain_one(case: str, options: str) -> None:
    class_RN, confidence_RN = NOTHING_TO_TELL[case]
    assert_plain(class_RN, confidence_RN, options)
    fitted = fit_latent(summed(class_RN, confidence_RN))
    assert fitted.delta == 0
    assert np.isfinite(fitted.to_array()[:-1]).all()


def test_many_questions_of_one_class_are_probable_and_plain() -> None:
    rng = np.random.default_rng(0)
    class_RN = np.where(rng.random((50, 8)) < 0.2, -1, 0).astype(np.int32)
    class_RN[7] = -1
    probability_R = assert_plain(class_RN, rng.normal(size=class_RN.shape))
    assert np.nanmin(probability_R) > 0.5


def test_values_that_are_no_numbers_count_as_votes_only(drawn: Draws) -> None:
    holes = np.random.default_rng(1).random(drawn.class_RN.shape) < 0.2
    expected = summed(drawn.class_RN, np.where(holes, np.nan, drawn.confidence_RN))
    for value in (np.inf, -np.inf):
        found = summed(drawn.class_RN, np.where(holes, value, drawn.confidence_RN))
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, two)
    assert (expected.votes == summed(drawn.class_RN, drawn.confidence_RN).votes).all()
    assert (expected.known <= expected.votes).all()
    assert expected.known.sum() == (~holes).sum()


def test_the_sums_of_a_question_by_hand() -> None:
    found = summed(classes([0, 1, 0, -1, 1, 0]), np.array([[1.0, 5.0, 4.0, 9.0, np.nan, 7.0]]))
    assert found.votes.tolist() == [[3, 2]]
    assert found.known.tolist() == [[3, 1]]
    assert found.mean.tolist() == [[4, 5]]
    assert found.square.tolist() == [[18, 0]]


def test_confidence_of_rollouts_without_an_answer_does_not_matter(drawn: Draws) -> None:
    class_RN = drawn.class_RN.copy()
    class_RN[:, ::5] = -1
    other_RN = drawn.confidence_RN.copy()
    other_RN[:, ::5] += 1000
    one, two = latent(class_RN, drawn.confidence_RN), latent(class_RN, other_RN)
    assert one.vote.winner_R.tolist() == two.vote.winner_R.tolist()
    np.testing.assert_array_equal(one.probability_R, two.probability_R)


def assert_same(one: VoteOutcome, two: VoteOutcome, tolerance: float = 1e-6) -> None:
    assert one.vote.winner_R.tolist() == two.vote.winner_R.tolist()
    np.testing.assert_allclose(one.probability_R, two.probability_R, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("a", "b"), [(1e-12, 0.0), (1e12, 0.0), (1.0, 1e6), (3.0, -50.0), (1e-12, -1e-9), (1e12, -1e14)]
)
def test_the_unit_of_confidence_does_not_matter(drawn: Draws, a: float, b: float) -> None:
    before = fit_latent(summed(drawn.class_RN, drawn.confidence_RN))
    assert before.delta > 0
    after = fit_latent(summed(drawn.class_RN, a * drawn.confidence_RN + b))
    assert after.delta / a == pytest.approx(before.delta, rel=1e-4)
    assert after.gain == pytest.approx(before.gain, rel=1e-4)
    assert_same(
        latent(drawn.class_RN, drawn.confidence_RN),
        latent(drawn.class_RN, a * drawn.confidence_RN + b),
        1e-5,
    )


def test_where_every_fit_is_refused_there_is_no_gain(drawn: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = summed(drawn.class_RN, drawn.confidence_RN)
    assert fit_latent(sums).gain > 2
    monkeypatch.setattr("dttrl.method.latent.MOST_SEPARATION", 0.0)
    refused = fit_latent(sums)
    assert (refused.gain, refused.delta) == (0.0, 0.0)


def test_probabilities_enter_as_the_nats_to_certainty(drawn: Draws) -> None:
    doubt = np.exp(drawn.confidence_RN.min() - 0.1 - drawn.confidence_RN).clip(1e-5)
    as_probability = latent(drawn.class_RN, 1.0 - doubt)
    assert_same(as_probability, latent(drawn.class_RN, 5.0 - np.log(doubt)))
    value = np.array([[0.5, 1.0, np.nan, 0.0]])
    np.testing.assert_allclose(surprise(value), [[np.log(2), -np.log(LEAST_DOUBT), np.nan, 0.0]])
    for other in (np.array([[0.5, 1.5]]), np.array([[-0.1, 0.5]]), np.array([[np.nan]])):
        assert surprise(other) is other


def test_the_level_of_a_question_does_not_matter(drawn: Draws) -> None:
    levels = np.random.default_rng(5).normal(0.0, 30.0, (len(drawn.class_RN), 1))
    one = latent(drawn.class_RN, drawn.confidence_RN)
    assert_same(one, latent(drawn.class_RN, drawn.confidence_RN + levels))
    levels[1:] = 0
    assert_same(one, latent(drawn.class_RN, drawn.confidence_RN + levels))


def test_the_order_of_questions_rollouts_and_classes_does_not_matter(drawn: Draws) -> None:
    rng = np.random.default_rng(6)
    one = latent(drawn.class_RN, drawn.confidence_RN)
    winner_R, probability_R = one.vote.winner_R, one.probability_R
    assert probability_R is not None
    order = rng.permutation(len(drawn.class_RN))
    other = latent(drawn.class_RN[order], drawn.confidence_RN[order])
    assert other.vote.winner_R.tolist() == winner_R[order].tolist()
    np.testing.assert_allclose(other.probability_R, probability_R[order], rtol=0, atol=1e-6)
    mixed = rng.permutation(drawn.class_RN.shape[1])
    assert_same(one, latent(drawn.class_RN[:, mixed], drawn.confidence_RN[:, mixed]))
    width = drawn.class_RN.max() + 1
    number = np.array([rng.permutation(width) for _ in drawn.class_RN], dtype=np.int32)
    renumbered_RN = np.take_along_axis(number, drawn.class_RN, axis=1)
    other = latent(renumbered_RN, drawn.confidence_RN)
    assert other.vote.winner_R.tolist() == number[np.arange(len(number)), winner_R].tolist()
    np.testing.assert_allclose(other.probability_R, probability_R, rtol=0, atol=1e-6)


def test_the_posterior_of_a_question_is_at_most_one(drawn: Draws) -> None:
    sums = summed(drawn.class_RN, drawn.confidence_RN)
    right_RC = posterior(sums, fit_latent(sums))
    assert (right_RC >= 0).all()
    assert (right_RC.sum(axis=1) < 1).all()
    assert (right_RC[sums.votes == 0] == 0).all()


def test_a_given_prior_stays(drawn: Draws) -> None:
    sums = summed(drawn.class_RN, drawn.confidence_RN)
    assert fit_latent(sums, none=0.3).none == pytest.approx(0.3, abs=1e-9)
    given = fit_latent(sums, power=2.0)
    assert (given.power, given.none) == (2.0, pytest.approx(0.1, abs=1e-9))
    assert (given.kappa, given.odds) == (pytest.approx(1.0, abs=1e-6), pytest.approx(0.0, abs=1e-6))
    # Without confidence the shares of votes^2 are what is left.
    blind = summed(classes([0, 0, 1, 2]), np.full((1, 4), np.nan))
    right = posterior(blind, fit_latent(blind, power=2.0, none=0.25))
    np.testing.assert_allclose(right, [[0.75 * 4 / 6, 0.75 / 6, 0.75 / 6]], rtol=1e-9)


def test_pools_at_once_are_fitted_as_each_alone() -> None:
    pools = [draw(seed, 30, 10, delta=delta) for seed, delta in enumerate((0.0, 1.0, 2.0, 4.0))]
    class_FRN = np.stack([pool.class_RN for pool in pools])
    confidence_FRN = np.stack([pool.confidence_RN for pool in pools])
    flat = summed(class_FRN.reshape(-1, 10), confidence_FRN.reshape(-1, 10))
    together = fit_latents(Sums(*(part.reshape(4, 30, -1) for part in flat)))
    probabilities = []
    for f, pool in enumerate(pools):
        alone = fit_latent(summed(pool.class_RN, pool.confidence_RN))
        for field in fields(Latent):
            if field.name != "power":
                found = getattr(together.one(f), field.name)
                assert found == pytest.approx(getattr(alone, field.name), rel=1e-6, abs=1e-6), field.name
        probabilities.append(latent(pool.class_RN, pool.confidence_RN))
    vote, probability = latent_votes(class_FRN, confidence_FRN, power=None, none=None)
    assert vote.winner_R.tolist() == np.concatenate([each.vote.winner_R for each in probabilities]).tolist()
    alone_R = np.concatenate([each.probability_R for each in probabilities])  # type: ignore[misc]
    np.testing.assert_allclose(probability, alone_R, rtol=0, atol=1e-6)


def test_joined_sums_are_padded_and_trimmed() -> None:
    narrow = summed(classes([0, 0, 0]), np.array([[1.0, 2, 3]]))
    wide = summed(classes([0, 1, 2], [0, 0, 1]), np.arange(6.0).reshape(2, 3))
    padded = Sums(*(np.pad(part, ((0, 0), (0, 5))) for part in wide))
    joined = Sums.joined([narrow, padded, narrow])
    assert joined.votes.tolist() == [[3, 0, 0], [1, 1, 1], [2, 1, 0], [3, 0, 0]]
    assert joined.mean.tolist() == [[2, 0, 0], [0, 1, 2], [3.5, 5, 0], [2, 0, 0]]
    one, two = fit_latent(joined), fit_latent(Sums(*(np.pad(p, ((0, 0), (0, 4))) for p in joined)))
    np.testing.assert_allclose(one.to_array(), two.to_array(), rtol=1e-9)


def test_a_fit_is_written_and_read_to_the_bit(drawn: Draws) -> None:
    sums = summed(drawn.class_RN, drawn.confidence_RN)
    for fitted in (fit_latent(sums), fit_latent(sums, power=1.5)):
        assert Latent.from_array(fitted.to_array()) == fitted
