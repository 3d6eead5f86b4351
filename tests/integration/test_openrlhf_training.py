"""OpenRLHF training a real model: two ranks, two vLLM engines, killed after a checkpoint and resumed.

Ray, vLLM, DeepSpeed and OpenRLHF are the real ones; ``tests/openrlhf_on_cpu`` only takes CUDA's names for the
CPU, so that no GPU is needed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from dttrl.answers.grading import Grader
from dttrl.sampling.models import LoadedModel, load_model
from dttrl.settings.sections import Model
from dttrl.training.replay import replay_run

pytestmark = pytest.mark.slow
pytest.importorskip("openrlhf", reason="needs openrlhf 0.11 and vLLM (nox -s openrlhf-cpu)")
pytest.importorskip("vllm", reason="needs openrlhf 0.11 and vLLM (nox -s openrlhf-cpu)")


ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "data/quickstart/model"
STEPS, EVERY = 6, 2
LONGEST = 600
"""Seconds for a launch; on two cores it takes two minutes."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run whose driver was killed after its first checkpoint and resumed; the metrics at the kill."""
    run = tmp_path_factory.mktemp("openrlhf") / "run"
    options = {
        "config": ROOT / "data/quickstart/train.yaml", "engine": "openrlhf", "run": run, "gpus": 2,
        "steps": STEPS, "votes": 16, "train-samples": 8, "questions-per-step": 4, "checkpoint-every": EVERY,
        "eval-every": STEPS, "eval-samples": 1, "learning-rate": 1e-4,
    }  # fmt: skip
    process = start("train", *(f"--{name}={value}" for name, value in options.items()), "--keep-tokens")
    deadline = time.monotonic() + LONGEST
    while process.poll() is None and len(metrics(run)) <= EVERY and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = metrics(run)
    assert EVERY < len(before) < STEPS, log_of(run)
    while alive(run) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(run), "the trainer outlived the command"
    assert start("train", "--resume", str(run)).wait(LONGEST) == 0, log_of(run)
    return run, before


def start(*arguments: str) -> subprocess.Popen[bytes]:
    shim = ROOT / "tests/openrlhf_on_cpu"
    paths = [str(shim), str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "DTTRL_TEST_GPUS": "2",
        "DS_ACCELERATOR": "cpu",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_ADDRESS": "local",
        "RAY_memory_monitor_refresh_ms": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    code = "import sys; from dttrl_cli.app import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.DEVNULL
    )


def metrics(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def log_of(run: Path) -> str:
    path = run / "openrlhf.log"
    return path.read_text(errors="replace")[-3000:] if path.is_file() else "no log"


def alive(run: Path) -> bool:
    """Whether the trainer's own process, which holds the run's name, is still there."""
    wanted = f"dttrl.training.openrlhf.main\0{run}".encode()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


def test_steps_before_the_checkpoint_stay_and_the_others_follow(
    killed: tuple[Path, list[dict[str, Any]]],
) -> None:
    run, before = killed
    after = metrics(run)
    assert [each["step"] for each in after] == list(range(1, STEPS + 1))
    assert after[:EVERY] == before[:EVERY]
    assert after[EVERY]["time"] > before[-1]["time"]
    for name in ("labels", "history"):
        table = pq.read_table(run / f"{name}.parquet")
        assert sorted(set(table["step"].to_pylist())) == list(range(1, STEPS + 1))
    evaluated = set(pq.read_table(run / "evaluations.parquet")["step"].to_pylist())
    assert evaluated == {0, STEPS}


def test_its_own_method_gives_its_labels_again(
    killed: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    run, _ = killed
    with Grader() as grader:
        _, replayed = replay_run(run, grader=grader, output=tmp_path / "votes.parquet")
    assert replayed is not None
    assert (replayed.rows, replayed.same) == (4 * STEPS, 4 * STEPS)


def test_the_engines_sample_from_the_weights_that_were_trained(
    killed: tuple[Path, list[dict[str, Any]]],
) -> None:
    """At the start, not any more after two steps, and not again after the resume."""
    run, _ = killed
    away = {step: distance(run, step) for step in (1, EVERY + 1, STEPS)}
    assert away[1] < 0.02
    assert away[EVERY + 1] > 3 * away[1]
    assert away[STEPS] > 3 * away[1]
    trained, first = (load(place).model.state_dict() for place in (run / "model", START))
    assert any(not torch.equal(trained[name], first[name]) for name in first)


def load(place: Path) -> LoadedModel:
    return load_model(Model(name=str(place)), device=torch.device("cpu"), dtype=torch.bfloat16)


def distance(run: Path, step: int) -> float:
    """Mean difference of a step's log-probabilities by the engines from those by the model at the start."""
    loaded = load(START)
    rows = pq.read_table(run / f"rollouts/step-{step:06d}.parquet").slice(0, 16).to_pylist()
    found = []
    for row in rows:
        prompt = list(loaded.encode(row["prompt"], chat=False))
        ids = torch.tensor([prompt + row["token_ids"]])
        with torch.no_grad():
            logprob = loaded.model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        own = logprob[torch.arange(len(row["token_ids"])), torch.tensor(row["token_ids"])].numpy()
        found.append(np.abs(own - np.array(row["token_logprob"])).mean())
    return float(np.mean(found))
