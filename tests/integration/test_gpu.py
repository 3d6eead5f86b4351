"""Training on a GPU: bfloat16 arithmetic over float32 weights, and resuming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.training.loop import resume, train

DATA = Path(__file__).resolve().parents[2] / "data" / "quickstart"


@pytest.mark.gpu
@pytest.mark.parametrize("beta", [0.0, 0.001])
def test_the_quickstart_model_learns_on_cuda(tmp_path: Path, beta: float) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    config = load_config(
        TrainConfig,
        DATA / "train.yaml",
        {
            "model": str(DATA / "model"),
            "questions": DATA / "questions.jsonl",
            "heldout": None,
            "device": "cuda",
            "dtype": "auto",
            "steps": 20,
            "eval_every": 0,
            "beta": beta,
            "run": tmp_path / "run",
        },
    )
    run = train(config)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(records) == 20
    # The first mini-batch of a step is on policy; bfloat16 may round later ratios, not beyond a few per cent.
    assert all(record["clip_fraction"] < 0.05 for record in records)
    assert sum(r["ground_truth_ratio"] for r in records[-5:]) > sum(
        r["ground_truth_ratio"] for r in records[:5]
    )
    assert resume(run) == run
    print(json.dumps({k: v for k, v in records[-1].items() if k.startswith("seconds")}))
