"""What stopping when sure would have saved, on rollouts that are all there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dttrl.analysis.stopping import simulate_stopping, stopping_table
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import write_table
from dttrl.errors import InputError
from dttrl.method.scored import Scored
from tests.scored_arrays import with_gold

SIZE = 36


def block(*kinds: str, size: int = SIZE) -> Scored:
    """Questions whose rollouts agree (on the right answer) or are split among two answers and no answer."""
    rows = {"agree": [0] * size, "split": [(0, 1, -1)[i % 3] for i in range(size)]}
    class_RN = np.array([rows[kind] for kind in kinds], dtype=np.int32)
    confidence_RN = np.random.default_rng(len(kinds)).normal(5, 1, class_RN.shape)
    return with_gold(Scored(class_RN, confidence_RN, query_id=list(kinds)), [0] * len(kinds))


def test_questions_that_agree_stop_first() -> None:
    blocks = [block("agree", "split", "agree"), block("split", "agree", "agree", "agree", size=44)]
    found = simulate_stopping(blocks, 8, SIZE, 0.8)
    assert found.n_drawn_R.tolist() == [24, 36, 24, 36, 24, 24, 24]
    assert found.sure_R.tolist() == [True, False, True, False, True, True, True]
    assert found.right_R[found.sure_R].all()
    assert found.winner_R.shape == found.probability_R.shape == (7,)
    assert (found.probability_R[found.sure_R] > 0.7).all()


def test_without_a_threshold_all_rollouts_vote() -> None:
    assert simulate_stopping([block("agree", "split")], 4, SIZE, None).n_drawn_R.tolist() == [SIZE, SIZE]


def test_what_stops_depends_on_the_first_rollouts_alone() -> None:
    whole = block("agree", "split", "agree", "agree")
    changed = whole.class_RN.copy()
    changed[0, 24:] = 1
    other = Scored(changed, whole.confidence_RN, query_id=whole.query_id)
    one, two = (simulate_stopping([each], 8, SIZE, 0.8) for each in (whole, other))
    assert one.n_drawn_R.tolist() == two.n_drawn_R.tolist()
    assert one.probability_R.tolist() == two.probability_R.tolist()


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [(8, 37, "has 36 rollouts"), (36, 36, "range"), (0, 8, "range"), (8, 24, "no question can stop")],
)
def test_ranges_that_cannot_be_tried_are_refused(least: int, most: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        simulate_stopping([block("agree")], least, most, 0.9)


def write(path: Path, *, gold: str | None = "7", step: int | None = None, tokens: bool = True) -> Path:
    rows: list[dict[str, Any]] = [
        {
            "step": step, "query_id": f"q{q}", "sample_id": n, "gold": gold, "num_tokens": 10 + 10 * (q % 2),
            "answer": "7" if q % 2 == 0 else str(n % 5), "confidence": 5.0 + (n * 7 % 5) / 10,
        }
        for q in range(6)
        for n in range(SIZE)
    ]  # fmt: skip
    names = [name for name in rows[0] if (name != "num_tokens" or tokens) and (name != "step" or step)]
    table = pa.Table.from_pylist(rows, schema=ROLLOUTS.select(names))
    write_table(path, table, ROLLOUTS, metadata={})
    return path


def test_a_row_for_every_file_and_threshold(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.parquet"), write(tmp_path / "b.parquet", gold=None, tokens=False)]
    table = stopping_table(paths, samples="8..36", thresholds=[0.5, 0.8], repeats=3)
    assert table[["file", "until"]].to_numpy().tolist() == [["a", 0.5], ["a", 0.8], ["b", 0.5], ["b", 0.8]]
    row = table.iloc[1]
    assert (row["questions"], row["samples"], row["plain"]) == (6, "8..36", row["accuracy"])
    # Three questions of 10 tokens a rollout stop after 24 of 36, three of 20 tokens never do.
    assert row["stopped"] == 0.5
    assert row["rollouts"] == pytest.approx((3 * 24 + 3 * 36) / 216)
    assert row["tokens"] == pytest.approx((3 * 24 * 10 + 3 * 36 * 20) / (3 * 36 * 10 + 3 * 36 * 20))
    blind = table.iloc[3]
    assert math.isnan(blind["accuracy"])
    assert math.isnan(blind["tokens"])
    assert blind["rollouts"] == row["rollouts"]


def test_the_first_order_is_the_samples_own_and_others_follow_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    own = [stopping_table([path], thresholds=[0.9], samples="4..36", seed=seed) for seed in (0, 1)]
    assert own[0].equals(own[1])
    mixed = [
        stopping_table([path], thresholds=[0.9], samples="4..36", repeats=4, seed=seed) for seed in (0, 0)
    ]
    assert mixed[0].equals(mixed[1])


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"samples": "8..37"}, "has 36 rollouts"),
        ({"samples": "4"}, "--samples: a number of rollouts or a range"),
        ({"thresholds": [1.0]}, "--until"),
    ],
)
def test_what_cannot_be_tried_is_said_in_one_line(tmp_path: Path, choices: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        stopping_table([write(tmp_path / "a.parquet")], **choices)


def test_rollouts_of_several_steps_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    for step in (1, 2):
        write(folder / f"{step}.parquet", step=step)
    with pytest.raises(InputError, match="2 training steps"):
        stopping_table([folder])
