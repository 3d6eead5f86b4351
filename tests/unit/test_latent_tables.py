"""The scripts behind docs/latent.md on a small file: draws, calibration, strategies, parts of the model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dttrl.analysis.runs import read_metrics
from dttrl.method.scored import Scored

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
FINDINGS = ROOT / "benchmarks" / "findings"
sys.path.insert(0, str(FINDINGS))

import ablation  # noqa: E402
import drawn as drawn_module  # noqa: E402
import latent_page  # noqa: E402
import latent_training  # noqa: E402
import plan  # noqa: E402
import strategies  # noqa: E402
from drawn import Drawn, brier, calibration_error, least_calibration_error  # noqa: E402

sys.path.remove(str(FINDINGS))

QUESTIONS, ROLLOUTS = 16, 24


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    """Sixteen questions of three classes; class 0 is right and surer, and is the largest of half of them."""
    rng = np.random.default_rng(0)
    class_RN = np.stack(
        [rng.choice(3, ROLLOUTS, p=[0.7, 0.2, 0.1] if r % 2 else [0.3, 0.5, 0.2]) for r in range(QUESTIONS)]
    ).astype(np.int32)
    # Two deviations apart: five and more would pass for an outlier.
    confidence_RN = rng.normal(10.0, 1.0, class_RN.shape) + 2.0 * (class_RN == 0)
    block = Scored(
        class_RN,
        confidence_RN,
        query_id=[f"q{r}" for r in range(QUESTIONS)],
        gold=["a"] * QUESTIONS,
        right_RC=np.tile([True, False, False], (QUESTIONS, 1)),
    )
    halves = [block.take(range(8)), block.take(range(8, QUESTIONS))]
    return Drawn("small", halves, has_confidence=True)


def test_calibration_by_hand() -> None:
    given, right = np.array([[0.9, 0.8, np.nan, 1.0]]), np.array([[True, False, False, True]])
    assert brier(given, right) == pytest.approx((0.01 + 0.64 + 0 + 0) / 4)
    # Bins .9-1 (.9, right; 1, right), .8-.9 (.8, wrong) and 0-.1: |1.9 - 2|, .8 and 0 of four.
    assert calibration_error(given, right) == pytest.approx((0.1 + 0.8) / 4)
    # Two bins of as many values: 0 and .8 (none right), .9 and 1 (both right).
    assert calibration_error(given, right, bins=2, mass=True) == pytest.approx((0.8 + 0.1) / 4)
    assert calibration_error(np.full(4, 0.7), np.array([1, 1, 0, 0]) > 0, mass=True) == pytest.approx(0.2)


def test_the_calibration_error_of_exact_probabilities() -> None:
    # One question at p is off by 1 - p with probability p, and by p otherwise, whatever its draws.
    for draws in (1, 16):
        least = least_calibration_error(np.full((draws, 1), 0.8), repeats=4000)
        assert least == pytest.approx(2 * 0.8 * 0.2, abs=0.01)
    assert least_calibration_error(np.ones((1, 9))) == 0.0
    few, many = (least_calibration_error(np.full((1, size), 0.8)) for size in (100, 10_000))
    assert many < few / 5


def test_draws_are_of_each_question_in_its_order(drawn: Drawn) -> None:
    draw = drawn.draw(8, 5)
    assert draw.class_FRN.shape == draw.confidence_FRN.shape == (5, QUESTIONS, 8)
    assert drawn.draw(ROLLOUTS, 5).class_FRN.shape == (1, QUESTIONS, ROLLOUTS)
    whole = drawn.draw(ROLLOUTS, 1)
    assert np.array_equal(whole.class_FRN[0, 8:], drawn.blocks[1].class_RN)
    assert drawn.right(whole.class_FRN[:, :, 0])[0, 9] == (drawn.blocks[1].class_RN[1, 0] == 0)


def test_every_strategy_at_every_budget(drawn: Drawn) -> None:
    rows = strategies.offline_rows(drawn, repeats=3)
    assert set(rows["budget"]) == {8, 16, ROLLOUTS}
    assert len(rows) == 3 * rows["method"].nunique()
    whole = rows[rows["budget"] == ROLLOUTS].set_index("method")
    assert whole.loc["latent", "accuracy"] == 1.0
    assert whole.loc["sc", "accuracy"] < 1.0
    assert rows[rows["method"] == "latent"]["brier"].notna().all()
    assert rows[rows["method"] == "bon"]["brier"].isna().all()


def test_the_parts_of_the_model(drawn: Drawn) -> None:
    rows = ablation.ablation_rows(drawn, budget=16, repeats=2).set_index("variant")
    assert rows["accuracy"].between(0, 1).all()
    assert rows["calibration_error"].notna().all()
    # Without what confidence says it is the plain vote; with it, these questions are all right.
    assert rows.loc["votes only (delta = 0)", "accuracy"] == rows.loc["plain vote", "accuracy"]
    assert rows.loc["latent", "accuracy"] > rows.loc["plain vote", "accuracy"]
    assert drawn_module.calibration_error is strategies.calibration_error


def test_the_tables_of_training_are_of_the_pack() -> None:
    groups = [group for group in latent_training.named_groups(DATA / "latent") if group.start == "two-steps"]
    assert [group.label for group in groups] == list(plan.LATENT_SMOLLM2)
    published = pd.read_parquet(DATA / "reference" / "tables" / "latent-training.parquet")
    made = latent_training.training(groups).set_index(["method", "split"])
    rows = published[published["start"] == "two-steps"].set_index(["method", "split"])
    pd.testing.assert_frame_equal(made, rows)
    assert made.loc[("latent", "train"), "against_seeds"] == 3

    labels = latent_training.labels(groups).set_index(["counts", "steps"])
    first, last = (labels.loc[("in full", f"{end} 20")] for end in ("first", "last"))
    assert (first["runs"], first["labels"]) == (3, 3 * 20 * 8)
    # The seeds' own records of the steps: what they expected, and what was right.
    records = [step for run in groups[2].runs for step in read_metrics(run)]
    for row, low, high in ((first, 1, 20), (last, 41, 60)):
        known = [step for step in records if low <= step["step"] <= high]
        for name, metric in (("expected", "expected_accuracy"), ("right", "label_accuracy")):
            assert row[name] == pytest.approx(np.mean([step[metric] for step in known]), abs=1e-5)
    assert last["calibration_error"] > first["calibration_error"] > 0.3


def test_the_page_keeps_what_stands_around_its_tables() -> None:
    page = "Before.\n\n<!-- table strategies -->\nold\n<!-- end -->\n\nAfter.\n"
    row = {"file": "f", "questions": 4, "budget": 8, "method": "sc", "accuracy": 0.5}
    filled = latent_page.PLACE.sub(
        lambda place: f"{place[1]}{latent_page.PLACES[place[2]](lambda _: [row])}{place[3]}", page
    )
    assert filled.startswith("Before.\n\n<!-- table strategies -->\nQuestions right")
    assert "| `f` | 4 × 8 | **2** |" in filled
    assert filled.endswith("<!-- end -->\n\nAfter.\n")
