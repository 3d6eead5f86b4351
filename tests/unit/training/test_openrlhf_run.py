"""A run at scale without OpenRLHF: the controller's records, and what the launcher makes of an ending."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dttrl.errors import InputError, MissingDependencyError, WorkError
from dttrl.training.openrlhf import launch
from dttrl.training.openrlhf.controller import Controller
from dttrl.training.openrlhf.flags import question_id
from dttrl.training.run_folder import METRICS
from dttrl.training.setup import read_splits
from tests.scale_run import drawn, make_run

QUICKSTART = Path(__file__).resolve().parents[3] / "data/quickstart"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    config = make_run(tmp_path / "run")
    opened = Controller(config.keeping.run, backend_version="test")
    opened.start(0)
    yield opened
    opened.close()


def test_a_recorded_run_is_replayed_to_its_labels(controller: Controller) -> None:
    from dttrl_cli.app import main

    random = np.random.default_rng(1)
    for step in (1, 2):
        responses = drawn(controller, random)
        labels = [response["label"] for response in responses]
        trained = controller.label(step, labels, responses)
        assert len(trained) == 3 * 4
        assert len({t.place for t in trained}) == 3 * 4
        controller.finish({"loss": 0.5})
        controller.save(step)
    run = controller.folder.path
    rows = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["loss"] == 0.5
    assert {"seconds_score", "seconds_label", "seconds_write", "majority_ratio"} <= set(rows[0])
    assert main(["vote", str(run), "--quiet"]) == 0


def test_the_history_of_a_run_has_the_settings_that_its_configuration_records(tmp_path: Path) -> None:
    config = make_run(tmp_path / "run", method="distri-gmm", shift_correction=False, history_window=1)
    opened = Controller(config.keeping.run, backend_version="test")
    try:
        opened.start(0)
        responses = drawn(opened, np.random.default_rng(4))
        opened.label(1, [response["label"] for response in responses], responses)
        opened.save(1)
        assert opened._history.pool.mean() > 1  # as measured, not centred on the midpoint
        opened.start(1)  # as after a resume
        assert (opened._history.shift_correction, opened._history.window) == (False, 1)
        assert opened._history.pool.mean() > 1
    finally:
        opened.close()


def test_rewards_and_places_belong_to_the_questions_also_when_they_come_in_another_order(
    controller: Controller,
) -> None:
    responses = drawn(controller, np.random.default_rng(2))
    labels = [response["label"] for response in responses]
    first = {
        (question_id(labels[t.place]), t.place % 8): t[1:] for t in controller.label(1, labels, responses)
    }
    controller.folder.flush()
    controller.start(0)
    order = [*range(16, 24), *range(8), *range(8, 16)]
    moved = controller.label(1, [labels[i] for i in order], [responses[i] for i in order])
    second = {(question_id(labels[order[t.place]]), t.place % 8): t[1:] for t in moved}
    assert second == first


def test_a_question_that_lost_rollouts_is_named(controller: Controller) -> None:
    responses = drawn(controller, np.random.default_rng(3))
    labels = [response["label"] for response in responses]
    with pytest.raises(InputError, match=r"has 7 rollouts, not 8"):
        controller.label(1, labels[:-1], responses[:-1])


def test_a_resumed_run_goes_on_with_the_history_of_its_step(controller: Controller) -> None:
    random = np.random.default_rng(4)
    for step in (1, 2):
        responses = drawn(controller, random)
        controller.label(step, [response["label"] for response in responses], responses)
        controller.finish({})
        controller.save(step)
    assert len(controller._history.pool.votes) == 2 * 3
    controller.start(1)
    assert len(controller._history.pool.votes) == 3
    assert launch.last_step(controller.folder.path) == 1
    shutil.rmtree(controller.folder.checkpoints)
    with pytest.raises(InputError, match="confidence history cannot be read"):
        controller.start(1)


def test_an_ending_before_the_last_step_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_run(tmp_path / "run")
    written = f"open({str(config.keeping.run / METRICS)!r}, 'a').write('{{\"step\": 1}}' + chr(10)); exit(3)"
    monkeypatch.setattr(launch, "check_openrlhf", lambda: "0.11.2")
    plan = replace(
        launch.plan_run(config, [], read_splits(config)["train"]), command=[sys.executable, "-c", written]
    )
    monkeypatch.setattr(launch, "plan_run", lambda *_: plan)
    with pytest.raises(WorkError, match=r"ended after step 1 of 2 \(exit code 3\).*dttrl train --resume"):
        launch.resume(config.keeping.run)


def test_openrlhf_that_is_absent_or_too_new_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="--engine openrlhf needs openrlhf, ray"):
        launch.check_openrlhf()
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(launch, "openrlhf_version", lambda: "0.12.0")
    with pytest.raises(InputError, match=r"tested with OpenRLHF 0\.11\.x, and 0\.12\.0 is installed"):
        launch.check_openrlhf()


def test_a_held_out_question_with_the_id_of_a_training_one_has_its_own_prompt(tmp_path: Path) -> None:
    config = make_run(tmp_path / "run")
    train = json.loads((config.keeping.run / "questions/train.jsonl").read_text().splitlines()[0])
    other = train | {"prompt": "11+11?", "answer": "22"}
    (config.keeping.run / "questions/heldout.jsonl").write_text(json.dumps(other) + "\n")
    opened = Controller(config.keeping.run, backend_version="test")
    try:
        assert opened.rows(opened.splits["train"][:1])[0] == [train["prompt"]]
        assert opened.rows(opened.splits["heldout"])[0] == ["11+11?"]
        responses = drawn(opened, np.random.default_rng(5))
        opened.start(0)
        opened.label(1, [response["label"] for response in responses], responses)
        assert opened._step is not None
        assert train["prompt"] in {question.prompt for question in opened._step.questions}
    finally:
        opened.close()
