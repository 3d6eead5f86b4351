"""The paper's experiments by name."""

from __future__ import annotations

import pytest

from dttrl.errors import InputError
from dttrl.settings.commands import TrainConfig
from dttrl.training.openrlhf.presets import PRESETS, preset


def test_five_models_on_three_benchmarks() -> None:
    assert len(PRESETS) == 15
    for settings in PRESETS.values():
        config = TrainConfig.model_validate(settings | {"questions": "q.jsonl"})
        assert (config.signal.votes, config.signal.train_samples, config.update.questions_per_step) == (
            64,
            32,
            8,
        )
        assert (config.update.learning_rate, config.update.warmup, config.update.schedule) == (
            5e-7,
            0.03,
            "cosine",
        )
        assert (config.evaluation.samples, config.evaluation.temperature, config.evaluation.top_p) == (
            16,
            0.6,
            0.95,
        )


@pytest.mark.parametrize(
    ("name", "model", "temperature", "length", "episodes"),
    [
        ("paper/qwen2.5-7b/aime2024", "Qwen/Qwen2.5-7B", 0.6, 3072, 80),
        ("paper/Qwen2.5-Math-7B/AMC", "Qwen/Qwen2.5-Math-7B", 1.0, 3072, 30),
        ("paper/qwen2.5-math-1.5b/math-500", "Qwen/Qwen2.5-Math-1.5B", 1.0, 3072, 10),
        ("paper/llama-3.1-8b-instruct/amc", "meta-llama/Llama-3.1-8B-Instruct", 0.6, 3072, 30),
        ("paper/qwen3-8b/aime2024", "Qwen/Qwen3-8B", 1.0, 32768, 80),
    ],
)
def test_what_differs(name: str, model: str, temperature: float, length: int, episodes: int) -> None:
    settings = preset(name)
    assert settings["model"] == model
    assert settings["temperature"] == temperature
    assert settings["max_new_tokens"] == length
    assert settings["episodes"] == episodes


def test_an_unknown_preset_lists_the_others_in_one_line() -> None:
    with pytest.raises(InputError) as error:
        preset("paper/gpt/amc")
    message = str(error.value)
    assert message.startswith("--preset paper/gpt/amc: ")
    assert "qwen3-8b" in message
    assert "math-500" in message
    assert "\n" not in message
