"""A finished run labelled again: its own method gives its labels to the bit, others vote on its steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dttrl.answers.grading import Grader
from dttrl.data.schemas import LABELS, VOTES
from dttrl.data.tables import read_table
from dttrl.errors import InputError
from dttrl.method.voting.registry import METHODS
from dttrl.training.loop import train
from dttrl.training.replay import is_run, replay_run
from tests.integration.test_training import STEPS, config
from tests.tiny import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("distri-gmm", {}),
        ("distri-gmm", {"f_vote": "hierarchical", "history_window": 2, "centre": "question"}),
        ("distri-wsc", {"measure": "logprob", "select": "balanced"}),
        ("distri-wsc", {"label": "mob"}),
        ("ttrl-gt", {}),
        ("ttrl-latent", {}),
    ],
)
def test_the_labels_of_a_run_are_reproduced_exactly(
    tmp_path: Path, model: Path, method: str, changes: dict[str, object]
) -> None:
    settings = config(tmp_path, model, method=method, **changes)
    run = train(settings)
    assert is_run(run)
    votes = tmp_path / "votes.parquet"
    with Grader() as grader:
        summary, replayed = replay_run(run, grader=grader, output=votes)
    labels = read_table(run / "labels.parquet", LABELS)
    assert replayed is not None
    assert (replayed.rows, replayed.same) == (labels.num_rows, labels.num_rows)
    others = [] if method == "ttrl-latent" else ["latent"]
    assert [one.method for one in summary.methods] == ["sc", *others, settings.signal.title]
    assert replayed.method == settings.signal.title
    assert not replayed.differing
    assert summary.rollouts == 8 * labels.num_rows
    table = read_table(votes, VOTES)
    table = table.filter(np.array(table.column("method").to_pylist()) == replayed.method)
    if method == "ttrl-latent":  # the one fit by which all methods are judged is the one that labelled
        assert table.column("label_probability").equals(labels.column("label_probability"))
    assert table.column("query_id").to_pylist() == labels.column("query_id").to_pylist()
    assert table.column("answer_class").to_pylist() == labels.column("label_class").to_pylist()


def test_other_methods_vote_on_the_steps_of_a_run(tmp_path: Path, model: Path) -> None:
    run = train(config(tmp_path, model, method="distri-gmm"))
    votes = tmp_path / "votes.parquet"
    with Grader() as grader:
        summary, replayed = replay_run(run, ["all", "ttrl"], grader=grader, output=votes)
    assert replayed is not None
    assert replayed.same == replayed.rows
    assert [method.method for method in summary.methods] == [*METHODS, "ttrl", "distri-gmm"]
    rows = read_table(votes, VOTES)
    by_method = {
        name: rows.filter(np.array(rows.column("method").to_pylist()) == name)
        .column("answer_class")
        .to_pylist()
        for name in ("sc", "ttrl", "progressive", "distri-gmm")
    }
    assert by_method["sc"] == by_method["ttrl"]
    # The strategy `progressive` with its defaults is the label of distri-gmm with its.
    assert by_method["progressive"] == by_method["distri-gmm"]
    assert sorted(set(rows.column("step").to_pylist())) == list(range(1, STEPS + 1))


def test_labels_that_differ_are_counted_by_column(tmp_path: Path, model: Path) -> None:
    run = train(config(tmp_path, model, method="ttrl"))
    text = (run / "config.yaml").read_text("utf-8")
    (run / "config.yaml").write_text(text.replace("train_samples: 4", "train_samples: 8"), "utf-8")
    with Grader() as grader:
        _, replayed = replay_run(run, grader=grader)
        assert replayed is not None
        assert set(replayed.differing) == {"reward_mean"}
        assert replayed.same < replayed.rows
        assert "different: reward_mean" in replayed.sentence
        (run / "labels.parquet").unlink()
        assert replay_run(run, grader=grader)[1] is None
        with pytest.raises(InputError, match="'nonsense'"):
            replay_run(run, ["nonsense"], grader=grader)
