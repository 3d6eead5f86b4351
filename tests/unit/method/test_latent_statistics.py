"""The latent-answer vote on rollouts drawn from its own model, and with a policy that drifts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dttrl.method.ballots import FloatArray
from dttrl.method.labels import label_weights
from dttrl.method.latent import LEAST_GAIN, fit_latent, summed
from dttrl.method.methods import Signal
from dttrl.method.scored import Scored
from dttrl.method.training_signal import TrainingSignal, training_signal
from dttrl.method.voting.registry import parse_method
from tests.latent_draws import Draws, draw


def right(drawn: Draws, method: str = "latent") -> tuple[np.ndarray, FloatArray | None]:
    """Which labels are right, and how probable the vote says that is."""
    outcome = parse_method(method).vote(drawn.class_RN, drawn.confidence_RN)
    return outcome.vote.winner_R == drawn.right_R, outcome.probability_R


def calibration_error(probability_R: FloatArray, right_R: np.ndarray) -> float:
    """Expected calibration error in ten bins."""
    place = np.minimum((10 * probability_R).astype(int), 9)
    bins = [place == number for number in range(10) if (place == number).any()]
    return float(sum(here.mean() * abs(probability_R[here].mean() - right_R[here].mean()) for here in bins))


def test_what_confidence_was_drawn_with_is_found() -> None:
    drawn = draw(5, 1000, 16, delta=2.0, variance=0.4, noise=1.5)
    fitted = fit_latent(summed(drawn.class_RN, drawn.confidence_RN))
    assert fitted.delta == pytest.approx(2.0, abs=0.1)
    assert fitted.class_variance == pytest.approx(0.4, abs=0.1)
    assert fitted.noise == pytest.approx(1.5, abs=0.05)


def test_how_votes_split_is_found() -> None:
    drawn = draw(5, 2000, 32, a=4.0, b=1.5, theta=6.0, none=0.1)
    fitted = fit_latent(summed(drawn.class_RN, np.full(drawn.class_RN.shape, np.nan)))
    assert fitted.a == pytest.approx(4.0, rel=0.2)
    assert fitted.b == pytest.approx(1.5, rel=0.2)
    assert fitted.theta == pytest.approx(6.0, rel=0.1)
    assert fitted.none == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("votes", [{}, {"a": 4.0, "b": 1.5, "theta": 6.0}])
@pytest.mark.parametrize("rollouts", [6, 16])
def test_the_probability_is_calibrated_where_confidence_tells(rollouts: int, votes: dict[str, float]) -> None:
    right_R, probability_R = right(drawn := draw(5, 2000, rollouts, delta=2.0, **votes))
    assert probability_R is not None
    assert calibration_error(probability_R, right_R) < 0.05
    assert right_R.sum() > right(drawn, "sc")[0].sum() + 20


TOO_MODEST = pytest.mark.xfail(
    reason="rollouts that are drawn independently, as here, are worth more than six witnesses", strict=True
)


@pytest.mark.parametrize(
    ("rollouts", "votes"),
    [
        (16, {"a": 4.0, "b": 1.5, "theta": 6.0}),
        (32, {"a": 4.0, "b": 1.5, "theta": 6.0}),
        pytest.param(16, {}, marks=TOO_MODEST),
        (6, {}),
    ],
)
def test_the_probability_is_calibrated_by_votes_alone(rollouts: int, votes: dict[str, float]) -> None:
    right_R, probability_R = right(draw(5, 2000, rollouts, delta=0.0, **votes))
    assert probability_R is not None
    assert calibration_error(probability_R, right_R) < 0.05


def test_where_confidence_is_noise_the_vote_is_the_plain_one() -> None:
    plain = 0
    for seed in range(40):
        drawn = draw(1000 + seed, 30, 16, delta=0.0)
        fitted = fit_latent(summed(drawn.class_RN, drawn.confidence_RN))
        outcome = parse_method("latent").vote(drawn.class_RN, drawn.confidence_RN)
        majority = parse_method("sc").vote(drawn.class_RN, drawn.confidence_RN)
        assert (fitted.delta > 0) == (fitted.gain >= LEAST_GAIN)
        plain += fitted.gain < LEAST_GAIN and (outcome.vote.winner_R == majority.vote.winner_R).all()
    assert plain >= 38


def test_where_confidence_tells_more_labels_are_right() -> None:
    latent, majority = 0, 0
    for seed in range(20):
        drawn = draw(2000 + seed, 30, 16)
        assert fit_latent(summed(drawn.class_RN, drawn.confidence_RN)).gain > LEAST_GAIN
        latent += int(right(drawn)[0].sum())
        majority += int(right(drawn, "sc")[0].sum())
    assert latent > majority + 20


STEPS = 6


def trained(method: str, *, drifting: bool, **settings: object) -> list[TrainingSignal]:
    """Signals of a few steps of a policy whose confidence rises, and whose levels move, or not."""
    chosen = Signal(method=method, votes=16, train_samples=16, **settings)
    past, signals = None, []
    for step in range(1, STEPS + 1):
        drawn = draw(300 + step, 12, 16)
        confidence_RN = drawn.confidence_RN + 40.0
        if drifting:
            # Half a deviation of the confidences of a step, and every question harder or easier.
            harder = np.random.default_rng(step).normal(0.0, 2.0, (12, 1))
            confidence_RN = confidence_RN + 2.5 * step + harder
        signal, past = training_signal(Scored(drawn.class_RN, confidence_RN, step), past, chosen)
        signals.append(signal)
    return signals


def test_a_drift_of_confidence_changes_no_label() -> None:
    still, moved = trained("ttrl-latent", drifting=False), trained("ttrl-latent", drifting=True)
    for one, two in zip(still, moved, strict=True):
        assert one.label_B.tolist() == two.label_B.tolist()
        np.testing.assert_allclose(one.probability_B, two.probability_B, rtol=0, atol=1e-6)
    assert still[-1].latent is not None
    assert still[-1].latent.delta > 0
    plain = trained("distri-gmm", drifting=False, shift_correction=False)
    drifted = trained("distri-gmm", drifting=True, shift_correction=False)
    assert any((one.label_B != two.label_B).any() for one, two in zip(plain, drifted, strict=True))


def test_advantages_are_scaled_by_the_probability_of_the_label() -> None:
    plain, weighed = (
        trained("ttrl-latent", drifting=False),
        trained("ttrl-latent", drifting=False, weigh_labels=True),
    )
    doubted = 0
    for one, two in zip(plain, weighed, strict=True):
        assert two.probability_B is not None
        for b, probability in enumerate(two.probability_B.tolist()):
            expected = one.advantage_BM[b] * (probability if probability >= 0.5 else 0.0)
            np.testing.assert_allclose(two.advantage_BM[b], expected, rtol=1e-12)
            doubted += probability < 0.5 and one.advantage_BM[b].any()
    assert doubted


def test_a_label_weighs_its_probability_from_one_half_on() -> None:
    given = np.array([0.0, 0.4999, 0.5, 0.75, 1.0, np.nan])
    assert label_weights(given).tolist() == [0.0, 0.0, 0.5, 0.75, 1.0, 0.0]


def test_without_an_answer_a_weighed_question_teaches_nothing() -> None:
    drawn = draw(1, 4, 8)
    class_RN = drawn.class_RN.copy()
    class_RN[2] = -1
    settings = Signal(method="ttrl-latent", votes=8, train_samples=8, weigh_labels=True)
    scored = replace(Scored(class_RN, drawn.confidence_RN, 1))
    signal, _ = training_signal(scored, None, settings)
    assert signal.label_B[2] == -1
    assert (signal.advantage_BM[2] == 0).all()
    assert np.isfinite(signal.advantage_BM).all()
