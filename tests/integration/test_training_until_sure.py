"""Training in which a question stops voting when it is sure: files, replay, resuming, a full run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.rollouts import table_to_rollouts
from dttrl.data.schemas import HISTORY, LABELS
from dttrl.data.tables import read_table
from dttrl.method.measure_choice import Past
from dttrl.method.scored import Scored
from dttrl.method.settling import draw_until_sure, first_rollouts
from dttrl.method.training_signal import training_signal
from dttrl.ranges import SampleRange
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.training.loop import resume, train
from dttrl.training.observer import Observer
from dttrl.training.replay import replay_run, run_steps, written_labels
from tests.integration.test_training import STEPS, config, metrics, same_bits, weights
from tests.rollout_groups import read_groups

RANGE = {"votes": "8..28", "until": 0.1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return train(config(tmp_path_factory.mktemp("until"), tiny_model, **RANGE))


def test_questions_stop_and_every_record_counts_what_was_drawn(finished: Path) -> None:
    labels = read_table(finished / "labels.parquet", LABELS)
    sizes = dict(zip(zip(labels["step"].to_pylist(), labels["query_id"].to_pylist(), strict=True),
                     labels["n"].to_pylist(), strict=True))  # fmt: skip
    assert set(sizes.values()) <= {24, 28}
    assert len(set(sizes.values())) > 1
    drawn = {}
    for step in range(1, STEPS + 1):
        files = RolloutFiles([finished / "rollouts" / f"step-{step:06d}.parquet"])
        for group in read_groups(files):
            drawn[step, group.query_id] = group.table.num_rows
            assert group.table["sample_id"].to_pylist() == list(range(group.table.num_rows))
            assert sum(group.table["trained"].to_pylist()) == 4
            assert group.table["reward"].null_count == 0
    assert drawn == sizes
    history = read_table(finished / "history.parquet", HISTORY)
    assert history.num_rows == sum(sizes.values())
    for record in metrics(finished):
        own = [size for (step, _), size in sizes.items() if step == record["step"]]
        assert record["drawn_rollouts"] == sum(own)
        assert "pass@28" in record  # of up to 28, whatever was drawn
        assert record["unspent_rollouts"] == 2 * 28 - sum(own)
        assert record["stopped"] == sum(size < 28 for size in own)
        assert (record["unspent_tokens"] > 0) == (record["unspent_rollouts"] > 0)
        assert record["trained_rollouts"] <= 2 * 4


def test_the_first_step_has_the_first_rollouts_of_a_full_run(
    finished: Path, tmp_path: Path, tiny_model: Path
) -> None:
    whole = train(config(tmp_path, tiny_model, votes=28, steps=1))
    assert "unspent_rollouts" not in metrics(whole)[0]
    first, full = (
        {
            group.query_id: table_to_rollouts(group.table)
            for group in read_groups(RolloutFiles([run / "rollouts" / "step-000001.parquet"]))
        }
        for run in (finished, whole)
    )
    assert first.keys() == full.keys()
    for name, rollouts in first.items():
        for one, two in zip(rollouts, full[name], strict=False):
            assert one.text == two.text
            assert np.allclose(one.token_logprob, two.token_logprob, atol=1e-5)


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return train(config(tmp_path_factory.mktemp("latent"), tiny_model, **RANGE, method="distri-latent"))


@pytest.mark.parametrize("remembers", [True, False])
def test_what_stops_a_question_is_what_its_label_rests_on(
    finished: Path, latent: Path, remembers: bool
) -> None:
    """Labels by latent remember the steps before; other labels have no sums of them."""
    run = latent if remembers else finished
    settings = load_config(TrainConfig, run / "config.yaml").signal
    history = settings.empty_memory()
    differed = False
    with Grader() as grader:
        files = RolloutFiles([run])
        for block in run_steps(files, grader, written_labels(run), settings.votes):
            assert block.step is not None

            def drawn(past: Past | None, block: Scored = block) -> list[int]:
                look = partial(first_rollouts, block)
                size, until = len(block.class_RN), settings.until or 0.0
                found = draw_until_sure(size, SampleRange(8, 28), until, lambda *_: None, look, past=past)
                return [int(count) for count in found]

            assert drawn(history) == block.n_drawn_R.tolist()
            differed |= drawn(None) != block.n_drawn_R.tolist()
            _, history = training_signal(block, history, settings)
    assert differed == remembers


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "distri-wsc", "select": "balanced"},
        {"label": "mob"},
        {"method": "distri-latent"},
        # A label without a memory: a replay does not know at which step the measure changed.
        {"measure": "auto", "method": "ttrl"},
    ],
)
def test_the_labels_are_reproduced_exactly(
    finished: Path, tmp_path: Path, tiny_model: Path, changes: dict[str, object]
) -> None:
    run = train(config(tmp_path, tiny_model, **RANGE, **changes)) if changes else finished
    with Grader() as grader:
        summary, replayed = replay_run(run, grader=grader)
    assert replayed is not None
    assert (replayed.rows, dict(replayed.differing)) == (STEPS * 2, {})
    assert replayed.same == replayed.rows
    assert summary.rollouts == sum(read_table(run / "labels.parquet", LABELS)["n"].to_pylist())


def test_an_interrupted_run_resumes_to_the_same_bits(latent: Path, tmp_path: Path, tiny_model: Path) -> None:
    class Stop(Observer):
        def phase(self, name: str, done: int, total: int) -> None:
            # Between two blocks of a step, after a checkpoint.
            if name == "sample" and (self.stepped, done, total) == (3, 1, 2):
                raise KeyboardInterrupt

        def step(self, step: int, metrics: object) -> None:
            self.stepped = step

        stepped = 0

    settings = config(tmp_path, tiny_model, **RANGE, method="distri-latent")
    with pytest.raises(KeyboardInterrupt):
        train(settings, observer=Stop())
    resume(settings.keeping.run)
    assert same_bits(weights(settings.keeping.run), weights(latent))
    drawn = [[record["drawn_rollouts"] for record in metrics(run)] for run in (settings.keeping.run, latent)]
    assert drawn[0] == drawn[1]
