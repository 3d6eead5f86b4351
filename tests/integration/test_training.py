"""Training from end to end on a tiny model: files, purity, resuming to the same bits, being killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dttrl.analysis.checkpoint_choice import run_standings
from dttrl.analysis.run_summary import summarize_run
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import EVALUATIONS, HISTORY, LABELS, ROLLOUTS
from dttrl.data.tables import read_table
from dttrl.errors import InputError, OutputExistsError
from dttrl.method.first_votes import best_standing
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.training.loop import resume, train
from dttrl.training.observer import Observer
from tests.rollout_groups import read_groups
from tests.tiny import write_questions

STEPS = 6


def config(tmp_path: Path, model: Path, **changes: Any) -> TrainConfig:
    questions = tmp_path / "questions.jsonl"
    if not questions.exists():
        write_questions(questions, 6)
    values: dict[str, Any] = {
        "model": str(model),
        "questions": questions,
        "template": "raw",
        "max_new_tokens": 4,
        # One character of a random model is an answer often enough for votes to differ.
        "last_number": True,
        "votes": 8,
        "train_samples": 4,
        "steps": STEPS,
        "method": "distri-gmm",
        "questions_per_step": 2,
        "learning_rate": 3e-3,
        "schedule": "constant",
        "region": "all",
        "eval_every": 3,
        "eval_samples": 4,
        "checkpoint_every": 2,
        "threads": 1,
        "device": "cpu",
        "run": tmp_path / "run",
    }
    return load_config(TrainConfig, None, {**values, **changes})


def weights(run: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(
        run / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors"
    )
    return found


def same_bits(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return train(config(tmp_path_factory.mktemp("finished"), tiny_model, beta=0.01))


def test_the_run_folder_holds_every_record(finished: Path) -> None:
    records = metrics(finished)
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    wanted = (
        "label_accuracy reward_accuracy majority_ratio ground_truth_ratio majority_voting_reward pass@8 "
        "post_reward_accuracy post_ground_truth_ratio post_pass@4 label_ratio diversity diversity_weight "
        "no_answer_rate ties fallbacks auroc mixture_mean_neg mixture_std_pos shift pool_size kl "
        "clip_fraction grad_norm loss learning_rate entropy tokens truncated_rate seconds_sample "
        "seconds_label seconds_update"
    )
    assert set(wanted.split()) <= set(records[-1])
    assert records[-1]["pool_size"] == STEPS * 2 * 8
    labels = read_table(finished / "labels.parquet", LABELS)
    assert labels.num_rows == STEPS * 2
    assert read_table(finished / "history.parquet", HISTORY).num_rows == STEPS * 2 * 8
    evaluations = read_table(finished / "evaluations.parquet", EVALUATIONS)
    assert sorted(set(evaluations["step"].to_pylist())) == [0, 3, 6]
    assert set(evaluations["n"].to_pylist()) == {4}


def test_the_rollouts_of_a_step_carry_its_signal(finished: Path) -> None:
    path = finished / "rollouts" / "step-000004.parquet"
    files = RolloutFiles([path])
    assert files.metadata["method"] == "distri-gmm"
    groups = list(read_groups(files))
    assert len(groups) == 2
    rows = [row for group in groups for row in group.table.to_pylist()]
    assert set(ROLLOUTS.required) <= set(rows[0])
    assert all(row["step"] == 4 for row in rows)
    for group in groups:
        rows = group.table.to_pylist()
        assert sum(row["trained"] for row in rows) == 4
        assert {row["advantage"] is None for row in rows if not row["trained"]} == {True}
        for row in rows:
            rewarded = row["pseudo_label"] is not None and row["answer"] is not None
            assert row["reward"] in (0.0, 1.0)
            assert rewarded or row["reward"] == 0.0
        trained = [row["advantage"] for row in rows if row["trained"]]
        assert np.mean(trained) == pytest.approx(0.0, abs=1e-12)


def test_training_changed_the_weights_and_kept_last_and_best(finished: Path, tiny_model: Path) -> None:
    start = load_file(tiny_model / "model.safetensors")
    assert not same_bits(start, {name: value for name, value in weights(finished).items() if name in start})
    state = json.loads((finished / "checkpoints" / "step-000006" / "state.json").read_text())
    steps = {int(path.name[5:]) for path in (finished / "checkpoints").iterdir()}
    assert steps <= {6, state["best_step"]}
    assert 6 in steps


def test_the_saved_config_is_the_run_again(finished: Path, tmp_path: Path) -> None:
    again = load_config(TrainConfig, finished / "config.yaml", {"run": tmp_path / "again"})
    assert same_bits(weights(train(again)), weights(finished))


def test_gold_answers_do_not_reach_the_labels(finished: Path, tmp_path: Path, tiny_model: Path) -> None:
    blind = write_questions(tmp_path / "questions.jsonl", 6, with_answers=False)
    run = train(config(tmp_path, tiny_model, beta=0.01, questions=blind))
    assert same_bits(weights(run), weights(finished))
    assert "label_accuracy" not in metrics(run)[-1]
    assert not (run / "evaluations.parquet").exists()


def test_ground_truth_needs_gold(tmp_path: Path, tiny_model: Path) -> None:
    blind = write_questions(tmp_path / "questions.jsonl", 6, with_answers=False)
    with pytest.raises(InputError, match="ttrl-gt") as caught:
        train(config(tmp_path, tiny_model, questions=blind, method="ttrl-gt"))
    assert "q0" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["ttrl", "ttrl-gt", "ttrl-wsc", "distri-wsc"])
def test_every_method_trains(tmp_path: Path, tiny_model: Path, method: str) -> None:
    run = train(config(tmp_path, tiny_model, method=method, steps=2, eval_every=0, keep_rollouts=False))
    assert len(metrics(run)) == 2
    assert not (run / "rollouts").exists() or not list((run / "rollouts").iterdir())
    assert not (run / "history.parquet").exists()


def test_questions_without_an_answer_are_not_learnt_from(tmp_path: Path, tiny_model: Path) -> None:
    # Nothing is extracted from a random model without --last-number: no label, no reward, no update.
    run = train(config(tmp_path, tiny_model, last_number=False, steps=2, beta=0.1, weight_decay=0.1))
    assert all(record["no_answer_rate"] == 1.0 and record["updates"] == 0 for record in metrics(run))
    start = load_file(tiny_model / "model.safetensors")
    after = weights(run, 2)
    assert all(torch.equal(start[name], after[name]) for name in start)
    labels = read_table(run / "labels.parquet", LABELS)
    assert set(labels["label"].to_pylist()) == {None}


class StopAt(Observer):
    """Interrupts a run in the middle of a step, as Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self._step, self._seen = step, 0

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._seen = step

    def phase(self, name: str, done: int, total: int) -> None:
        if name == "sample" and done == total and self._seen == self._step - 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted_in", [1, 2, 4, 6])
def test_an_interrupted_run_resumes_to_the_same_bits(
    finished: Path, tmp_path: Path, tiny_model: Path, interrupted_in: int
) -> None:
    chosen = config(tmp_path, tiny_model, beta=0.01)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, observer=StopAt(interrupted_in))
    run = resume(chosen.keeping.run)
    assert same_bits(weights(run), weights(finished))
    for name, stage in (("labels", LABELS), ("evaluations", EVALUATIONS), ("history", HISTORY)):
        whole = read_table(finished / f"{name}.parquet", stage)
        assert read_table(run / f"{name}.parquet", stage).equals(whole), name
    quiet = [{k: v for k, v in r.items() if "second" not in k and k != "time"} for r in metrics(run)]
    whole = [{k: v for k, v in r.items() if "second" not in k and k != "time"} for r in metrics(finished)]
    assert quiet == whole


def test_resuming_a_finished_run_leaves_it_alone(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    resume(finished)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_resumed_run_cannot_change_its_settings(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--learning-rate"):
        resume(finished, overrides={"learning_rate": 1.0})
    shutil.copytree(finished, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("steps: 6", "steps: 8"))
    with pytest.raises(InputError, match=r"config\.yaml is not the one that step-000006 was trained with"):
        resume(tmp_path / "run")


def test_a_run_resumes_without_its_question_file_and_from_anywhere(
    finished: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_model.parent)
    chosen = config(tmp_path, Path(tiny_model.name), beta=0.01)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, observer=StopAt(4))
    (tmp_path / "questions.jsonl").unlink()
    monkeypatch.chdir(tmp_path)
    assert same_bits(weights(resume(Path("run"))), weights(finished))


def test_two_processes_do_not_train_one_run(tmp_path: Path, tiny_model: Path) -> None:
    class Meddler(Observer):
        def step(self, step: int, metrics: Mapping[str, Any]) -> None:
            if step == 3:
                with pytest.raises(InputError, match="another process is working on it"):
                    resume(tmp_path / "run")

    run = train(config(tmp_path, tiny_model), observer=Meddler())
    assert len(metrics(run)) == STEPS


def test_an_input_in_the_run_folder_is_not_deleted(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    model = tmp_path / "run" / "checkpoints" / "step-000006" / "model"
    with pytest.raises(InputError, match="lies in the run folder"):
        train(config(tmp_path, model), overwrite=True)
    assert (model / "model.safetensors").is_file()


def test_the_best_evaluation_has_a_checkpoint(tmp_path: Path, tiny_model: Path) -> None:
    run = train(config(tmp_path, tiny_model, eval_every=1, checkpoint_every=0, eval_temperature=1.0))
    best = json.loads((run / "checkpoints" / "step-000006" / "state.json").read_text())["best_step"]
    assert (run / "checkpoints" / f"step-{best:06d}" / "model").is_dir()


def test_without_gold_the_votes_choose_the_best_checkpoint(
    finished: Path, tmp_path: Path, tiny_model: Path
) -> None:
    blind = write_questions(tmp_path / "questions.jsonl", 6, with_answers=False)
    chosen = config(tmp_path, tiny_model, beta=0.01, questions=blind, eval_every=1, checkpoint_every=0)
    with pytest.raises(KeyboardInterrupt):
        train(chosen, observer=StopAt(5))
    run = resume(chosen.keeping.run)
    standings = run_standings(run)
    assert [standing.step for standing in standings] == list(range(1, STEPS + 1))
    best = best_standing(standings)
    assert len({standing.gain for standing in standings}) > 1
    state = json.loads((run / "checkpoints" / "step-000006" / "state.json").read_text())
    assert (state["best_step"], state["best_score"]) == (best.step, best.gain)
    assert {int(path.name[5:]) for path in (run / "checkpoints").iterdir()} == {best.step, STEPS}
    # With gold answers the same choice is shown, and the one by gold is kept.
    summary = summarize_run(finished)
    assert summary.unaided is not None
    assert summary.unaided.step == best_standing(run_standings(finished)).step
    assert summary.unaided.score is not None


def test_centred_confidences_are_the_history(tmp_path: Path, tiny_model: Path) -> None:
    run = train(config(tmp_path, tiny_model, centre="question", steps=2))
    table = read_table(run / "history.parquet", HISTORY)
    values = np.asarray(table["confidence"]).reshape(4, 8)
    assert np.allclose(values.mean(axis=1), 0.0)


def test_an_existing_run_is_refused_before_the_model_is_loaded(tmp_path: Path, tiny_model: Path) -> None:
    chosen = config(tmp_path, Path("no-such-model"))
    chosen.keeping.run.mkdir()
    (chosen.keeping.run / "config.yaml").write_text("method: ttrl\n")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        train(chosen)


def test_a_killed_run_resumes_to_the_same_bits(finished: Path, tmp_path: Path, tiny_model: Path) -> None:
    chosen = config(tmp_path, tiny_model, beta=0.01)
    (tmp_path / "config.yaml").write_text(
        (finished / "config.yaml").read_text().replace(str(finished), str(chosen.keeping.run))
    )
    command = "from dttrl_cli.app import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "train", "--config", str(tmp_path / "config.yaml"), "--quiet"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    # A moment that no test has chosen: somewhere after the first step, wherever the process then is.
    limit = time.monotonic() + 120
    while (
        not (chosen.keeping.run / "metrics.jsonl").exists()
        or not (chosen.keeping.run / "metrics.jsonl").stat().st_size
    ):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < limit
        time.sleep(0.01)
    time.sleep(random.Random().uniform(0.0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert same_bits(weights(resume(chosen.keeping.run)), weights(finished))
    left = [
        path.name for path in chosen.keeping.run.rglob("*") if ".tmp-" in path.name or "building" in path.name
    ]
    assert not [name for name in left if "building" in name]
