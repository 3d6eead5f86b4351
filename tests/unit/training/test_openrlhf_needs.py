"""What a run at scale needs, against counts by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dttrl.settings.commands import ScaleConfig
from dttrl.training.openrlhf.needs import count_parameters, needs
from tests.tiny import write_model


def config_of(**changes: object) -> ScaleConfig:
    given: dict[str, object] = {"model": "m", "questions": "q.jsonl", "gpus": 4, "nodes": 2}
    return ScaleConfig.model_validate(given | changes)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "adam"),
    [(0, 1600, 1600, 9600), (1, 1600, 1600, 1200), (2, 1600, 200, 1200), (3, 200, 200, 1200)],
)
def test_zero_divides_memory_over_all_gpus(stage: int, weights: int, gradients: int, adam: int) -> None:
    found = needs(config_of(zero_stage=stage, tensor_parallel=2), 800, 30, 30)
    assert (found.weights, found.gradients, found.adam) == (weights, gradients, adam)
    assert found.reference == weights
    assert found.training == 2 * weights + gradients + adam
    assert found.vllm_weights == 800
    assert found.vllm_share == 0.5


def test_without_a_beta_there_is_no_reference() -> None:
    assert needs(config_of(beta=0), 800, 30, 30).reference == 0


def test_rollouts_and_tokens() -> None:
    config = config_of(episodes=2, eval_every=4, max_new_tokens=10)
    found = needs(config, 800, questions=30, answered=35)
    assert found.steps == 6  # two passes of three full batches of eight
    assert found.rollouts == 6 * 8 * 64
    assert found.trained == 6 * 8 * 32
    assert found.evaluation_rollouts == 3 * 35 * 16  # before the first step, after the fourth and the last
    assert found.most_tokens == (6 * 8 * 64 + 3 * 35 * 16) * 10


def test_evaluations_only_before_and_after() -> None:
    assert needs(config_of(steps=50, eval_every=0), 800, 30, 30).evaluation_rollouts == 2 * 30 * 16


def test_fewer_questions_than_a_batch() -> None:
    assert needs(config_of(steps=1), 800, questions=3, answered=0).rollouts == 3 * 64


def test_parameters_are_counted_without_the_weights(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    folder = write_model(tmp_path / "model")
    counted = sum(p.numel() for p in LlamaForCausalLM.from_pretrained(folder).parameters())
    for file in folder.glob("*.safetensors"):
        file.unlink()
    assert count_parameters(str(folder)) == counted
