from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dttrl.analysis.budget import (
    Benchmark,
    BudgetTable,
    budget_table,
    draws,
    read_benchmark,
)
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import write_table
from dttrl.errors import InputError
from dttrl.method.scored import Scored
from dttrl.method.voting.registry import parse_method
from tests.latent_draws import draw
from tests.scored_arrays import with_gold


def block(classes: list[list[int]], weights: list[list[float]]) -> Scored:
    """Questions q0, q1, ... whose class 0 is right."""
    scored = Scored(
        np.array(classes, np.int32),
        np.array(weights, float),
        query_id=[f"q{i}" for i in range(len(classes))],
    )
    return with_gold(scored, [0] * len(classes))


def benchmark(questions: int = 3, size: int = 20, name: str = "made") -> Benchmark:
    rng = np.random.default_rng(questions)
    classes, weights = [], []
    for _ in range(questions):
        classes.append([*rng.integers(-1, 3, size).tolist(), 2])
        weights.append(rng.gamma(3, size=size + 1).tolist())
    return Benchmark(name, [block(classes, weights)], has_confidence=True)


def cells(table: BudgetTable) -> dict[tuple[int, str, str], float]:
    return table.cells.set_index(["budget", "method", "benchmark"])["accuracy"].to_dict()


def test_draws_are_without_replacement_nested_and_their_own() -> None:
    small, large, whole = draws("q", 12, [3, 8, 12], repeats=50, seed=4)
    assert small.shape == (50, 3)
    assert whole.tolist() == [list(range(12))]
    for one, more in zip(small.tolist(), large.tolist(), strict=True):
        assert one == sorted(set(one))
        assert set(one) <= set(more)
    assert len({tuple(one) for one in small.tolist()}) > 30
    np.testing.assert_array_equal(small, draws("q", 12, [3], repeats=50, seed=4)[0])
    assert (small != draws("q", 12, [3], repeats=50, seed=5)[0]).any()
    assert (small != draws("r", 12, [3], repeats=50, seed=4)[0]).any()
    share = np.bincount(draws("q", 12, [3], repeats=4000, seed=1)[0].ravel()) / 4000
    np.testing.assert_allclose(share, 0.25, atol=0.03)


def test_accuracy_is_that_of_votes_on_the_draws() -> None:
    made = benchmark()
    methods = ["sc", "wsc", "bon", "mob", "deepconf:top=0.5", "borda", "distrivoting"]
    table = budget_table([made], methods=methods, budgets=[2, 5], repeats=7, seed=3)
    found = cells(table)
    for i, budget in enumerate((2, 5)):
        for method in methods:
            right = []
            (scored,) = made.blocks
            for r, query_id in enumerate(scored.query_id):
                for order in draws(query_id, 21, [2, 5], repeats=7, seed=3)[i]:
                    vote = parse_method(method).vote(
                        scored.class_RN[r, order][None], scored.confidence_RN[r, order][None]
                    )
                    right.append(int(vote.vote.winner_R[0]) == 0)
            assert found[budget, method, "made"] == pytest.approx(np.mean(right))
    assert (table.cells["repeats"] == 7).all()
    assert (table.cells["questions"] == 3).all()


def test_many_repeats_approach_the_mean_over_all_subsets() -> None:
    question = block([[0, 0, 1, 1, 1, 2, 2]], [[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]])
    made = Benchmark("made", [question], has_confidence=True)
    found = cells(budget_table([made], methods=["sc"], budgets=[3], repeats=20_000))
    subsets = [list(subset) for subset in combinations(range(7), 3)]
    classes = np.array([question.class_RN[0, subset] for subset in subsets])
    weights = np.array([question.confidence_RN[0, subset] for subset in subsets])
    winner = parse_method("sc").vote(classes, weights).vote.winner_R
    assert found[3, "sc", "made"] == pytest.approx((winner == 0).mean(), abs=0.012)


def test_the_result_depends_neither_on_threads_nor_on_the_other_methods() -> None:
    made = benchmark(7)
    whole = budget_table([made], methods=["sc", "distrivoting"], budgets=[4, 8], repeats=5).cells
    for workers in (1, 3):
        alone = budget_table([made], methods=["distrivoting"], budgets=[8], repeats=5, workers=workers)
        same = whole[(whole["budget"] == 8) & (whole["method"] != "sc")]
        assert alone.cells.to_dict("records") == same.to_dict("records") != []


def test_a_budget_beyond_the_samples_is_left_out_and_said() -> None:
    poor, rich = benchmark(2, 9, "poor"), benchmark(2, 30, "rich")
    table = budget_table([poor, rich], methods=["sc"], repeats=3)
    assert {(c.benchmark, c.budget) for c in table.cells.itertuples()} == {
        ("poor", 8),
        ("rich", 8),
        ("rich", 16),
    }
    assert any("'q0' has 10 rollouts" in note and "16, 32, 64, 128, 256" in note for note in table.notes)
    with pytest.raises(InputError, match="nothing is extrapolated"):
        budget_table([poor], methods=["sc"], budgets=[64])


def test_all_samples_are_one_draw_and_its_interval_is_over_questions() -> None:
    made = benchmark(4, 11)
    (cell,) = budget_table([made], methods=["sc"], budgets=[12], repeats=9).cells.itertuples()
    assert cell.repeats == 1
    assert cell.accuracy_low <= cell.accuracy <= cell.accuracy_high
    assert cell.accuracy * 4 == round(cell.accuracy * 4)


def test_an_easy_benchmark_has_a_sure_interval_and_a_mixed_one_a_wide_one() -> None:
    easy = Benchmark("easy", [block([[0] * 9] * 5, [[1.0] * 9] * 5)], True)
    mixed = Benchmark("mixed", [block([[0] * 9, [1] * 9] * 3, [[1.0] * 9] * 6)], True)
    for made, width in ((easy, 0.0), (mixed, 0.8)):
        (cell,) = budget_table([made], methods=["sc"], budgets=[4], repeats=4).cells.itertuples()
        assert cell.accuracy_high - cell.accuracy_low == pytest.approx(width, abs=0.2)
        assert cell.accuracy == (1.0 if made is easy else 0.5)


def test_pooled_methods_wrong_budgets_and_equal_names_are_refused() -> None:
    made = benchmark()
    with pytest.raises(InputError, match="progressive has no budget table"):
        budget_table([made], methods=["progressive"])
    with pytest.raises(InputError, match="at least 1 rollout"):
        budget_table([made], budgets=[0])
    with pytest.raises(InputError, match="one name"):
        budget_table([made, made])
    every = budget_table([made], methods=["all"], budgets=[4], repeats=2)
    assert "progressive" not in set(every.cells["method"])
    assert "latent" in set(every.cells["method"])


def test_the_latent_vote_of_a_draw_is_fitted_to_all_its_questions() -> None:
    drawn = draw(4, 12, 24, delta=3.0)
    names = [f"q{i}" for i in range(12)]
    whole = Scored(drawn.class_RN, drawn.confidence_RN, query_id=names)
    whole = with_gold(whole, drawn.right_R.tolist())
    made = Benchmark("drawn", [whole.take(range(5)), whole.take(range(5, 12))], True)
    (cell,) = budget_table([made], methods=["latent"], budgets=[8], repeats=6).cells.itertuples()
    order_QRN = np.stack([draws(name, 24, [8], repeats=6, seed=0)[0] for name in names])
    right = 0.0
    for repeat in range(6):
        class_RN = np.take_along_axis(drawn.class_RN, order_QRN[:, repeat], axis=1)
        confidence_RN = np.take_along_axis(drawn.confidence_RN, order_QRN[:, repeat], axis=1)
        winner_R = parse_method("latent").vote(class_RN, confidence_RN).vote.winner_R
        right += float((winner_R == drawn.right_R).mean()) / 6
    assert cell.accuracy == pytest.approx(right, abs=1e-12)


def rows(path: Path, answers: list[str | None], **columns: Any) -> Path:
    records = [
        {"query_id": "q", "sample_id": i, "answer": answer} | {k: v[i] for k, v in columns.items()}
        for i, answer in enumerate(answers)
    ]
    table = pa.Table.from_pylist(records, schema=ROLLOUTS.select(records[0]))
    write_table(path, table, ROLLOUTS, metadata={})
    return path


def test_benchmarks_are_read_from_scored_files(tmp_path: Path) -> None:
    path = rows(
        tmp_path / "r.parquet", ["1/2", "0.5", None, "3"], gold=["0.5"] * 4, confidence=[1.0, None, 2.0, 3.0]
    )
    made = read_benchmark(path)
    (question,) = made.blocks
    assert (made.name, made.questions, made.poorest, made.has_confidence) == ("r", 1, (4, "q"), True)
    assert question.class_RN.tolist() == [[0, 0, -1, 1]]
    assert question.right_RC.tolist() == [[True, False]]
    assert np.isnan(question.confidence_RN[0, 1])


def test_files_that_cannot_be_measured_are_refused(tmp_path: Path) -> None:
    blind = rows(tmp_path / "blind.parquet", ["1", "2"], gold=["1", "1"])
    table = budget_table([read_benchmark(blind)], budgets=[1])
    assert set(table.cells["method"]) == {"sc"}
    assert any("no confidences" in note for note in table.notes)
    nothing = rows(tmp_path / "nothing.parquet", ["1", "2"], gold=[None, None])
    with pytest.raises(InputError, match="no question has a gold answer"):
        read_benchmark(nothing)
    negative = rows(tmp_path / "neg.parquet", ["1", "2"], gold=["1", "1"], confidence=[-1.0, -2.0])
    with pytest.raises(InputError, match="negative vote weight"):
        read_benchmark(negative)
    assert read_benchmark(negative, methods=["mob"]).questions


def test_the_frame_has_a_row_a_cell() -> None:
    frame = budget_table([benchmark()], methods=["sc", "wsc"], budgets=[2, 4], repeats=3).cells
    assert frame["budget"].to_list() == [2, 2, 4, 4]
    low, value, high = (frame[f"accuracy{end}"] for end in ("_low", "", "_high"))
    assert (low <= value).all()
    assert (value <= high).all()
