"""The paper's experiments as settings: five models on three benchmarks.

Sizes, temperatures and lengths are the paper's (its section on implementation details); learning rate,
warm-up, batches, evaluation and episodes are those of TTRL, which the paper follows. The questions are not
part of a preset.
"""

from __future__ import annotations

from dttrl.errors import InputError

_SHARED: dict[str, object] = {
    "votes": 64,
    "train_samples": 32,
    "questions_per_step": 8,
    "questions_per_update": 1,
    "learning_rate": 5e-7,
    "warmup": 0.03,
    "schedule": "cosine",
    "clip_epsilon": 0.2,
    "beta": 0.001,
    "top_p": 1.0,
    "eval_samples": 16,
    "eval_temperature": 0.6,
    "eval_top_p": 0.95,
}
_TEMPERATE, _WARM = 0.6, 1.0
_SHORT, _LONG = 3072, 32768
_MODELS: dict[str, dict[str, object]] = {
    "qwen2.5-7b": {"model": "Qwen/Qwen2.5-7B", "temperature": _TEMPERATE, "max_new_tokens": _SHORT},
    "qwen2.5-math-7b": {"model": "Qwen/Qwen2.5-Math-7B", "temperature": _WARM, "max_new_tokens": _SHORT},
    "qwen2.5-math-1.5b": {
        "model": "Qwen/Qwen2.5-Math-1.5B",
        "temperature": _WARM,
        "max_new_tokens": _SHORT,
    },
    "llama-3.1-8b-instruct": {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "temperature": _TEMPERATE,
        "max_new_tokens": _SHORT,
    },
    "qwen3-8b": {"model": "Qwen/Qwen3-8B", "temperature": _WARM, "max_new_tokens": _LONG},
}
_EPISODES = {"aime2024": 80, "amc": 30, "math-500": 10}

PRESETS: dict[str, dict[str, object]] = {
    f"paper/{model}/{benchmark}": {**_SHARED, **own, "episodes": episodes}
    for model, own in _MODELS.items()
    for benchmark, episodes in _EPISODES.items()
}
"""Settings by preset name."""


def preset(name: str) -> dict[str, object]:
    """Return the settings of a preset, in any case; InputError with the valid names for another."""
    found = PRESETS.get(name.strip().lower())
    if found is None:
        models, benchmarks = ", ".join(_MODELS), ", ".join(_EPISODES)
        raise InputError(
            f"--preset {name}: there is no such preset; they are paper/MODEL/BENCHMARK with MODEL one of "
            f"{models} and BENCHMARK one of {benchmarks}"
        )
    return dict(found)
