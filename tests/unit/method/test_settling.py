"""When a question stops, with rollouts that are known beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dttrl.method.ballots import ABSENT, IntArray
from dttrl.method.history import History
from dttrl.method.measure_choice import MeasuredPast, Past
from dttrl.method.past_sums import PastSums
from dttrl.method.scored import Scored
from dttrl.method.settling import Unspent, certainty, draw_until_sure, first_rollouts
from dttrl.method.voting.latent_vote import latent_vote
from dttrl.ranges import SampleRange

RANGE = SampleRange(8, 36)


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


def test_questions_that_stay_sure_stop_and_the_others_go_on_to_the_most() -> None:
    source = Source(pool())
    n_drawn_R = draw_until_sure(12, RANGE, 0.8, source.draw, source.look)
    assert n_drawn_R.dtype == np.int32
    assert n_drawn_R.tolist() == [24] * 4 + [36] * 8
    everyone, rest = list(range(12)), list(range(4, 12))
    assert source.drawn == [
        (everyone, range(8)), (everyone, range(8, 16)), (everyone, range(16, 24)),
        (rest, range(24, 32)), (rest, range(32, 36)),
    ]  # fmt: skip


def test_the_threshold_is_reached_by_being_equal_to_it() -> None:
    source = Source(pool())
    sure = first_certainty(source, 12)
    assert draw_until_sure(12, RANGE, sure, source.draw, source.look)[0] == 24
    above = float(np.nextafter(sure, 1.0))
    assert draw_until_sure(12, RANGE, above, source.draw, source.look)[0] > 24


@pytest.mark.parametrize(
    ("sure_looks", "stops"),
    [
        ("yyy....", 24),
        ("nyyy...", 32),
        # Sure by chance, twice in a row as well, is not enough, and begins anew.
        ("yynyynn", 64),
        ("ynyyy..", 40),
        # A look without any answer breaks it too.
        ("yy?yyy.", 48),
        # Whatever later looks say.
        ("yyynnnn", 24),
        # The look that would be the first to stop it at the last rollout is not taken.
        ("nnnnnyy", 64),
    ],
)
def test_a_question_stops_that_was_sure_at_three_looks_in_a_row(
    sure_looks: str, stops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second question never stops, so that every look is taken."""
    found = iter({"y": 0.9, "n": 0.1, "?": np.nan, ".": 0.9}[look] for look in sure_looks)
    monkeypatch.setattr("dttrl.method.settling.certainty", lambda *_: np.array([next(found), 0.1]))
    drawn: list[tuple[list[int], range]] = []
    n_drawn_R = draw_until_sure(
        2, SampleRange(8, 64), 0.875, lambda open_O, block: drawn.append((open_O.tolist(), block)), look_away
    )
    assert n_drawn_R.tolist() == [stops, 64]
    assert [block.stop for open_O, block in drawn if 0 in open_O][-1] == stops


@pytest.mark.parametrize(("least", "stops"), [(1, 17), (4, 20), (8, 24), (12, 36), (16, 32), (32, 64)])
def test_a_question_is_sure_over_as_many_rollouts_whatever_the_blocks(
    least: int, stops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dttrl.method.settling.certainty", lambda *_: np.array([0.9]))
    assert draw_until_sure(1, SampleRange(least, 128), 0.9, lambda *_: None, look_away).tolist() == [stops]


def look_away(n_drawn_R: IntArray) -> Scored:
    return Scored(np.zeros((len(n_drawn_R), 1), dtype=np.int32), np.ones((len(n_drawn_R), 1)))


def first_certainty(source: Source, size: int, past: Past | None = None) -> float:
    """The least that the first question was sure at the looks before it can stop."""
    looks = [np.full(size, n, dtype=np.int32) for n in (8, 16, 24)]
    return min(float(certainty(source.look(n_R), past)[0]) for n_R in looks)


def test_nothing_is_fitted_when_all_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("dttrl.method.settling.certainty", lambda *args: calls.append(1) or np.zeros(12))
    source = Source(pool())
    draw_until_sure(12, RANGE, 0.8, source.draw, source.look)
    assert len(calls) == len(list(RANGE.blocks())) - 1


def test_all_sure_ends_it() -> None:
    source = Source(pool().take(range(4)))
    assert draw_until_sure(4, RANGE, 0.5, source.draw, source.look).tolist() == [24] * 4
    assert len(source.drawn) == 3


def test_past_steps_are_fitted_to_as_well() -> None:
    whole = pool()
    _, past = PastSums().pooled(1, whole.class_RN, whole.confidence_RN)
    few = replace(whole.take([0, 4]), step=2)
    source = Source(few)
    alone, together = certainty(few), certainty(few, past)
    latent, _ = past.pooled(2, few.class_RN, few.confidence_RN)
    assert together.tolist() == latent_vote(few.class_RN, few.confidence_RN, latent)[1].tolist()
    assert not np.allclose(alone, together)
    sure = first_certainty(source, 2, past)
    assert draw_until_sure(2, RANGE, sure, source.draw, source.look, past=past)[0] == 24
    above = float(np.nextafter(sure, 1.0))
    assert draw_until_sure(2, RANGE, above, source.draw, source.look, past=past)[0] > 24


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
