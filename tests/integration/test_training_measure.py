"""Training that chooses its own measure: metrics and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest

from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import LABELS
from dttrl.data.tables import read_table
from dttrl.training.loop import resume, train
from tests.integration.test_training import StopAt, config, metrics, same_bits, weights


@pytest.mark.parametrize("method", ["distri-latent", "distri-gmm"])
def test_a_chosen_measure_is_written_and_resumes_to_the_same_bits(
    tmp_path: Path, tiny_model: Path, method: str
) -> None:
    changes = {"measure": "auto", "method": method, "steps": 2, "eval_every": 0, "checkpoint_every": 1}
    if method == "distri-latent":
        changes["weigh_labels"] = True
    whole = train(config(tmp_path, tiny_model, **changes, run=tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path, tiny_model, **changes, run=tmp_path / "run"), observer=StopAt(2))
    run = resume(tmp_path / "run")
    assert same_bits(weights(run, 2), weights(whole, 2))
    assert read_table(run / "labels.parquet", LABELS).equals(read_table(whole / "labels.parquet", LABELS))
    records = metrics(run)
    for record, expected in zip(records, metrics(whole), strict=True):
        assert record["measure"] == expected["measure"]
        assert record["measure_gain"] == expected["measure_gain"]
        assert record["measure"].partition(":")[0] in ("perplexity", "topk", "entropy", "self-certainty")
    files = RolloutFiles([run / "rollouts" / "step-000002.parquet"])
    assert files.metadata["measure"] == "auto"
