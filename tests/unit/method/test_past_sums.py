"""What the latent-answer vote remembers, and the choice of a measure over steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dttrl.errors import InputError
from dttrl.method.ballots import FloatArray
from dttrl.method.history import History
from dttrl.method.latent import LEAST_GAIN, Sums, fit_latent, summed
from dttrl.method.measure_choice import Evidence, MeasuredPast, candidates, weigh
from dttrl.method.past_sums import PastSums
from dttrl.method.scored import Scored
from dttrl.method.voting.registry import parse_method
from tests.latent_draws import draw


def after(steps: int, past: PastSums | None = None) -> PastSums:
    past = PastSums() if past is None else past
    for step in range(1, steps + 1):
        drawn = draw(step, 8, 12 + step)
        _, past = past.pooled(step, drawn.class_RN, drawn.confidence_RN)
    return past


@pytest.mark.parametrize("options", ["latent", "latent:window=2", "latent:lambda=2", "latent:none=0.2"])
def test_a_break_changes_no_bit(options: str) -> None:
    empty = parse_method(options).memory()
    assert isinstance(empty, PastSums)
    whole = after(4, empty)
    again = empty.restored(whole.to_arrays())
    now = draw(9, 8, 16)
    one, one_past = whole.pooled(5, now.class_RN, now.confidence_RN)
    two, two_past = again.pooled(5, now.class_RN, now.confidence_RN)
    assert one == two
    assert one_past.to_arrays().keys() == two_past.to_arrays().keys()
    for name, array in one_past.to_arrays().items():
        np.testing.assert_array_equal(array, two_past.to_arrays()[name])


def test_an_empty_past_is_restored() -> None:
    assert PastSums(window=3).restored(PastSums().to_arrays()) == PastSums(window=3)


def test_the_pool_is_every_question_of_the_window() -> None:
    whole, last = after(4), after(4, PastSums(window=2))
    assert [step for step, _ in whole.steps] == [1, 2, 3, 4]
    # The window is of past steps: the current one comes on top.
    assert [step for step, _ in last.steps] == [2, 3, 4]
    assert len(last.pool.votes) == 24
    assert [step for step, _ in after(3, PastSums(window=0)).steps] == [3]
    drawn = [draw(step, 8, 12 + step) for step in (2, 3, 4)]
    expected = Sums.joined([summed(each.class_RN, each.confidence_RN) for each in drawn])
    for found, part in zip(last.pool, expected, strict=True):
        np.testing.assert_array_equal(found, part)


def test_a_warm_start_ends_where_a_cold_one_does() -> None:
    past = after(12)
    cold = fit_latent(past.pool)
    assert past.last is not None
    assert past.last.delta == pytest.approx(cold.delta, rel=0.05)
    assert past.last.gain == pytest.approx(cold.gain, abs=0.1)


def test_steps_come_one_after_the_other() -> None:
    with pytest.raises(InputError, match="history holds step 2; cannot add step 2 after it"):
        after(2).remembering(2, summed(draw(0, 1, 3).class_RN, draw(0, 1, 3).confidence_RN))


def test_the_default_window_bounds_the_pool() -> None:
    memory = parse_method("latent").memory()
    assert isinstance(memory, PastSums)
    assert memory.window == 100
    every = parse_method("latent:window=all").memory()
    assert isinstance(every, PastSums)
    assert every.window is None


def batch(step: int, *, better: str = "entropy:all") -> Scored:
    """Ten questions; one candidate tells right from wrong, another is noise, a third says nothing."""
    drawn = draw(100 + step, 10, 12)
    noise: FloatArray = np.random.default_rng(step).normal(size=drawn.class_RN.shape)
    values = {"topk:all": noise, "entropy:all": noise[::-1].copy(), "perplexity:all": np.zeros_like(noise)}
    values[better] = -1000 + drawn.confidence_RN
    return Scored(drawn.class_RN, noise, step, candidates=values)


def test_the_candidate_that_tells_is_chosen_and_kept() -> None:
    past = MeasuredPast(PastSums())
    for step in (1, 2):
        chosen, evidence, past = past.settle(batch(step))
        assert (chosen.measure, evidence[0].name, past.chosen) == ("entropy", "entropy:all", "entropy:all")
        np.testing.assert_array_equal(chosen.confidence_RN, chosen.candidates["entropy:all"])
        assert evidence[0].gain > LEAST_GAIN
        assert evidence[0].gain > max(each.gain for each in evidence[1:])
        assert evidence[-1] == Evidence("perplexity:all", 0.0, 0.0) or evidence[-1].gain < 0
        _, memory = past.memory.pooled(step, chosen.class_RN, chosen.confidence_RN)
        past = replace(past, memory=memory)


def test_another_candidate_must_gain_enough_more(monkeypatch: pytest.MonkeyPatch) -> None:
    past = MeasuredPast(History(), chosen="topk:all")
    for margin, taken in ((LEAST_GAIN - 0.01, "topk:all"), (LEAST_GAIN, "entropy:all")):
        gains = [
            Evidence("entropy:all", 5 + margin, 1.0),
            Evidence("topk:all", 5.0, 1.0),
            Evidence("perplexity:all", 0.0, 0.0),
        ]
        monkeypatch.setattr("dttrl.method.measure_choice.weigh", lambda _, found=gains: list(found))
        _, evidence, following = past.settle(batch(1))
        assert (following.chosen, evidence[0].name) == (taken, taken)


def test_another_measure_forgets_confidences_but_not_sums() -> None:
    first = batch(1, better="topk:all")
    _, mixture = History().advance(1, first.confidence_RN)
    past = MeasuredPast(mixture, chosen="topk:all")
    later = batch(2)
    _, _, other = past.settle(later)
    assert other.chosen == "entropy:all"
    assert isinstance(other.memory, History)
    assert not other.memory.steps
    _, _, sums = MeasuredPast(PastSums()).settle(first)
    assert sums.chosen == "topk:all"
    many = replace(draw_batch(40), step=2)
    _, _, switched = sums.settle(many)
    assert switched.chosen == "entropy:all"
    assert isinstance(switched.memory, PastSums)
    # The past of the one that is taken now: the first step, in its own unit.
    assert [step for step, _ in switched.memory.steps] == [1]
    np.testing.assert_array_equal(
        switched.memory.steps[0][1].mean, summed(first.class_RN, first.candidates["entropy:all"]).mean
    )


def draw_batch(questions: int) -> Scored:
    drawn = draw(7, questions, 12)
    noise = np.random.default_rng(7).normal(size=drawn.class_RN.shape)
    values = {"topk:all": noise, "entropy:all": drawn.confidence_RN, "perplexity:all": np.zeros_like(noise)}
    return Scored(drawn.class_RN, noise, 1, candidates=values)


@pytest.mark.parametrize("memory", [PastSums(window=5), History()])
def test_a_break_changes_no_choice(memory: PastSums | History) -> None:
    past = MeasuredPast(memory)
    for step in (1, 2, 3):
        chosen, _, past = past.settle(batch(step))
        _, following = past.memory.pooled(step, chosen.class_RN, chosen.confidence_RN)
        past = replace(past, memory=following)
    arrays = past.to_arrays()
    assert MeasuredPast.is_in(arrays)
    assert not MeasuredPast.is_in(past.memory.to_arrays())
    again = MeasuredPast(memory).restored(arrays)
    one, two = past.settle(batch(4)), again.settle(batch(4))
    assert one[1] == two[1]
    assert one[2].chosen == two[2].chosen
    fitted = [
        each[2].memory.pooled(4, each[0].class_RN, each[0].confidence_RN)[1].to_arrays()
        for each in (one, two)
    ]
    for name, array in fitted[0].items():
        np.testing.assert_array_equal(array, fitted[1][name])


def test_candidates_are_weighed_whatever_their_unit() -> None:
    drawn = draw(11, 40, 12)
    sums = {
        name: summed(drawn.class_RN, a * drawn.confidence_RN + b)
        for name, a, b in (("small", 1e-6, 0.0), ("large", 1e6, 5.0), ("turned", -1.0, 0.0))
    }
    found = {each.name: each for each in weigh(sums)}
    assert found["small"].gain == pytest.approx(found["large"].gain, rel=1e-3)
    assert found["turned"].gain < LEAST_GAIN < found["small"].gain
    assert found["turned"].separation == 0
    assert weigh({}) == []


def test_candidates_have_the_region_that_is_asked_for() -> None:
    assert len(candidates("all")) == len(candidates("last-step")) == 8
    assert "topk:tail:7" in candidates("tail:7")
    assert candidates("tail:7")["topk:tail:7"].measure == "topk"
