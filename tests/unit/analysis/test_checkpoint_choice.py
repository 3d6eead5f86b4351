"""Which checkpoint is kept, by whom, and at what regret: made runs, and the runs of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import yaml

from dttrl.analysis.checkpoint_choice import checkpoint_choices, choice_regrets, run_standings
from dttrl.analysis.grouping import group_folders
from dttrl.data.schemas import EVALUATIONS, LABELS
from dttrl.data.tables import write_table
from dttrl.errors import InputError

DATA = Path(__file__).parents[3] / "data"


def make_run(
    folder: Path,
    votes: list[tuple[int, str, str, float]],
    correct: dict[str, dict[int, int]],
    **settings: Any,
) -> Path:
    """A run with the votes (step, question, answer, ratio) and, by split and step, right ones of 4."""
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"method": "ttrl", "eval_every": 2, **settings}))
    labels = [
        {
            "step": step, "query_id": query, "label": answer, "label_class": 0, "majority_answer": answer,
            "n": 8, "n_valid": 8, "majority_ratio": ratio, "label_ratio": ratio, "tie": False, "diversity": 2,
            "diversity_weight": 1.0, "reward_mean": ratio,
        }
        for step, query, answer, ratio in votes
    ]  # fmt: skip
    table = pa.Table.from_pylist(labels, schema=LABELS.fields)
    if labels:
        write_table(folder / "labels.parquet", table, LABELS, metadata={})
    rows = [
        {
            "step": step, "split": split, "query_id": "a", "n": 4, "n_correct": n, "majority_ratio": 0.5,
            "answer": "7" if n else "8", "gold": "7",
        }
        for split, by_step in correct.items()
        for step, n in by_step.items()
    ]  # fmt: skip
    if rows:
        table = pa.Table.from_pylist(rows, schema=EVALUATIONS.fields)
        write_table(folder / "evaluations.parquet", table, EVALUATIONS, metadata={})
    return folder


COLLAPSE = [(1, "a", "7", 0.5), (2, "a", "7", 0.75), (4, "a", "8", 1.0)]


def chosen(table: pd.DataFrame) -> dict[str, int]:
    names = ("first_votes", "last", "highest_ratio", "gold")
    return {name: int(table["step"][table[name]].item()) for name in names if table[name].any()}


def test_a_collapse_is_seen_by_the_first_votes_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", COLLAPSE, {"train": {0: 2, 2: 3, 4: 0}, "heldout": {0: 2, 2: 2, 4: 1}})
    table = checkpoint_choices(group_folders([run]))
    assert chosen(table) == {"first_votes": 2, "last": 4, "highest_ratio": 4, "gold": 2}
    assert table["regret_train"].to_list() == [0.0, 75.0]
    assert table["regret_heldout"].to_list() == [0.0, 25.0]
    regrets = choice_regrets(table).set_index(["split", "choice"])
    assert regrets["regret"].to_dict() == {
        (split, name): 0.0 if name in ("first_votes", "gold") else cost
        for split, cost in (("train", 75.0), ("heldout", 25.0))
        for name in ("first_votes", "last", "highest_ratio", "gold")
    }
    assert regrets["against_last"]["heldout", "first_votes"] == -25.0


def test_gold_is_that_of_held_out_questions_where_there_are_any(tmp_path: Path) -> None:
    by_train = {0: 2, 2: 1, 4: 3}
    both = make_run(tmp_path / "both", COLLAPSE, {"train": by_train, "heldout": {0: 2, 2: 3, 4: 1}})
    only = make_run(tmp_path / "only", COLLAPSE, {"train": by_train})
    assert chosen(checkpoint_choices(group_folders([both])))["gold"] == 2
    assert chosen(checkpoint_choices(group_folders([only])))["gold"] == 4


def test_the_start_is_chosen_only_where_asked(tmp_path: Path) -> None:
    votes = [(1, "a", "7", 0.5), (2, "a", "8", 0.75)]
    run = make_run(tmp_path / "r", votes, {"train": {0: 3, 2: 1}})
    assert chosen(checkpoint_choices(group_folders([run]))) == {
        "first_votes": 2, "last": 2, "highest_ratio": 2, "gold": 2,
    }  # fmt: skip
    table = checkpoint_choices(group_folders([run]), start=True)
    assert chosen(table) == {"first_votes": 0, "last": 2, "highest_ratio": 2, "gold": 0}
    # One step is no choice, two are.
    assert choice_regrets(checkpoint_choices(group_folders([run]))).empty
    assert set(choice_regrets(table)["runs"]) == {1}


def test_without_gold_the_steps_of_evaluations_are_judged(tmp_path: Path) -> None:
    votes = [(step, "a", "7", 0.5) for step in range(1, 6)]
    run = make_run(tmp_path / "r", votes, {})
    table = checkpoint_choices(group_folders([run]))
    assert table["step"].to_list() == [2, 4, 5]
    assert chosen(table) == {"first_votes": 5, "last": 5, "highest_ratio": 5}
    assert table["regret_train"].isna().all()
    assert choice_regrets(table).empty
    ends = make_run(tmp_path / "ends", votes, {}, eval_every=0)
    assert [standing.step for standing in run_standings(ends)] == [5]


def test_a_run_whose_labels_were_not_kept_is_judged_by_its_evaluations(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [], {"train": {0: 1, 2: 2, 4: 0}, "heldout": {0: 0, 2: 1, 4: 0}})
    table = checkpoint_choices(group_folders([run]))
    assert table["gain"].to_list() == [0.0, -0.5]
    assert chosen(table)["first_votes"] == 2


def test_a_run_without_votes_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [], {})
    assert run_standings(run) == []
    with pytest.raises(InputError, match=r"r: the run has no votes yet"):
        checkpoint_choices(group_folders([run]))


def regrets_of(pack: str, *, start: bool = False) -> dict[tuple[str, str], float]:
    table = choice_regrets(checkpoint_choices(group_folders([DATA / pack]), start=start), repeats=100)
    found: dict[tuple[str, str], float] = table.set_index(["split", "choice"])["regret"].to_dict()
    return found


def test_of_runs_that_collapse_a_good_checkpoint_is_kept() -> None:
    regret = regrets_of("collapse")
    assert regret["heldout", "first_votes"] < 2 < 15 < regret["heldout", "last"]
    assert regret["heldout", "highest_ratio"] > 15
    assert regret["train", "first_votes"] < 1


def test_of_runs_that_do_not_the_choice_costs_what_the_last_step_does() -> None:
    regret = regrets_of("reference")
    assert regret["heldout", "first_votes"] == pytest.approx(regret["heldout", "last"], abs=0.2)
    assert regret["train", "first_votes"] == pytest.approx(regret["train", "last"], abs=0.3)
