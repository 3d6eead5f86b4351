"""When a question stops, with rollouts that are known beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dttrl.method.ballots import ABSENT, IntArray
from dttrl.method.history import History
from dttrl.method.measure_choice import MeasuredPast
from dttrl.method.past_sums import PastSums
from dttrl.method.scored import Scored
from dttrl.method.settling import Unspent, certainty, draw_until_sure, first_rollouts
from dttrl.method.voting.latent_vote import latent_vote
from dttrl.ranges import SampleRange

RANGE = SampleRange(4, 14)


def pool(seed: int = 0) -> Scored:
    """Twelve questions: four unanimous, four of two classes evenly, four of which nobody answers anything."""
    rng = np.random.default_rng(seed)
    class_RN = np.zeros((12, RANGE.most), dtype=np.int32)
    class_RN[4:8] = np.arange(RANGE.most) % 2
    class_RN[8:] = -1
    return Scored(class_RN, rng.normal(5.0, 1.0, class_RN.shape))


class Source:
    """Rollouts that are looked up; remembers what was drawn."""

    def __init__(self, scored: Scored) -> None:
        self.scored = scored
        self.drawn: list[tuple[list[int], range]] = []

    def draw(self, open_O: NDArray[np.int64], block: range) -> None:
        self.drawn.append((open_O.tolist(), block))

    def look(self, n_drawn_R: IntArray) -> Scored:
        return first_rollouts(self.scored, n_drawn_R)


def test_sure_questions_stop_and_the_others_go_on_to_the_most() -> None:
    source = Source(pool())
    n_drawn_R = draw_until_sure(12, RANGE, 0.8, source.draw, source.look)
    assert n_drawn_R.dtype == np.int32
    assert n_drawn_R.tolist() == [4] * 4 + [14] * 8
    rest = list(range(4, 12))
    assert source.drawn == [
        (list(range(12)), range(4)), (rest, range(4, 8)), (rest, range(8, 12)), (rest, range(12, 14)),
    ]  # fmt: skip


def test_the_threshold_is_reached_by_being_equal_to_it() -> None:
    source = Source(pool())
    sure = float(certainty(source.look(np.full(12, 4, dtype=np.int32)))[0])
    assert draw_until_sure(12, RANGE, sure, source.draw, source.look)[0] == 4
    above = np.nextafter(sure, 1.0)
    assert draw_until_sure(12, RANGE, float(above), source.draw, source.look)[0] > 4


def test_a_question_that_stopped_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sure = iter([[0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.1, 0.1, 0.1]])
    monkeypatch.setattr("dttrl.method.settling.certainty", lambda *_: np.array(next(sure)))
    source = Source(pool().take([0, 1, 2]))
    assert draw_until_sure(3, RANGE, 0.9, source.draw, source.look).tolist() == [4, 8, 14]


def test_nothing_is_fitted_when_all_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("dttrl.method.settling.certainty", lambda *args: calls.append(1) or np.zeros(12))
    source = Source(pool())
    draw_until_sure(12, RANGE, 0.8, source.draw, source.look)
    assert len(calls) == len(list(RANGE.blocks())) - 1


def test_all_sure_ends_at_once() -> None:
    source = Source(pool().take(range(4)))
    assert draw_until_sure(4, RANGE, 0.5, source.draw, source.look).tolist() == [4] * 4
    assert len(source.drawn) == 1


def test_past_steps_are_fitted_to_as_well() -> None:
    whole = pool()
    _, past = PastSums().pooled(1, whole.class_RN, whole.confidence_RN)
    few = replace(whole.take([0, 4]), step=2)
    source = Source(few)
    alone, together = certainty(few), certainty(few, past)
    latent, _ = past.pooled(2, few.class_RN, few.confidence_RN)
    assert together.tolist() == latent_vote(few.class_RN, few.confidence_RN, latent)[1].tolist()
    assert not np.allclose(alone, together)
    sure = float(certainty(source.look(np.array([4, 4], dtype=np.int32)), past)[0])
    assert draw_until_sure(2, RANGE, sure, source.draw, source.look, past=past)[0] == 4
    above = float(np.nextafter(sure, 1.0))
    assert draw_until_sure(2, RANGE, above, source.draw, source.look, past=past)[0] > 4


def test_other_labels_remember_no_sums() -> None:
    few = pool().take([0, 4])
    assert certainty(few, History()).tolist() == certainty(few).tolist()


def test_an_open_choice_of_confidence_is_made_as_for_the_labels() -> None:
    """The first candidate says nothing here, the second tells the classes of split questions apart."""
    whole = pool().take(range(8))
    tells_RN = np.where(whole.class_RN == 0, 9.0, 1.0) + whole.confidence_RN / 10
    open_choice = {"topk:all": whole.confidence_RN, "perplexity:all": tells_RN}
    scored = replace(whole, candidates=open_choice, step=1)
    chosen, evidence, following = MeasuredPast(PastSums()).settle(scored)
    assert evidence[0].name == "perplexity:all"
    assert certainty(scored).tolist() == certainty(replace(chosen, candidates={})).tolist()
    later = replace(scored.take(range(6)), step=2)
    after = replace(following, memory=following.past[following.chosen])
    again, _, remembered = after.settle(later)
    expected = certainty(replace(again, candidates={}), remembered.memory)
    assert certainty(later, after).tolist() == expected.tolist()


def test_without_any_answer_nobody_is_sure() -> None:
    nothing = Scored(np.full((2, RANGE.most), -1, dtype=np.int32), np.ones((2, RANGE.most)))
    assert np.isnan(certainty(nothing)).all()
    source = Source(nothing)
    assert draw_until_sure(2, RANGE, 0.01, source.draw, source.look).tolist() == [RANGE.most] * 2


def test_first_rollouts_hide_the_rest() -> None:
    scored = Scored(np.array([[1, 2], [0, -1]], dtype=np.int32), np.ones((2, 2)), 3)
    first = first_rollouts(scored, np.array([1, 2], dtype=np.int32))
    assert first.class_RN.tolist() == [[1, ABSENT], [0, -1]]
    assert np.isnan(first.confidence_RN).tolist() == [[False, True], [False, False]]
    assert first.step == 3


def test_what_was_left_over_in_words() -> None:
    assert str(Unspent(3, 4, 50, 200, 1234)) == "50 of 200 rollouts (25.0%), about 1234 tokens"
