"""The paper's experiments as settings: five models on three benchmarks.

Sizes, temperatures and lengths are the paper's (its section on implementation details); learning rate,
warm-up, batches, evaluation and episodes are those of TTRL, which the paper follows. The questions are not
part of a preset.
"""

from __future__ import annotations

from dttrl.errors import InputError

_SHARED: dict[str, object] = {
    "method": "distri-gmm",
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
_MODELS = {
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B", 0.6, 3072),
    "qwen2.5-math-7b": ("Qwen/Qwen2.5-Math-7B", 1.0, 3072),
    "qwen2.5-math-1.5b": ("Qwen/Qwen2.5-Math-1.5B", 1.0, 3072),
    "llama-3.1-8b-instruct": ("meta-llama/Llama-3.1-8B-Instruct", 0.6, 3072),
    "qwen3-8b": ("Qwen/Qwen3-8B", 1.0, 32768),
}
"""Hub id, temperature, and new tokens at most."""
_EPISODES = {"aime2024": 80, "amc": 30, "math-500": 10}

PRESETS: dict[str, dict[str, object]] = {
    f"paper/{short}/{benchmark}": {
        **_SHARED, "model": model, "temperature": temperature, "max_new_tokens": length, "episodes": episodes
    }
    for short, (model, temperature, length) in _MODELS.items()
    for benchmark, episodes in _EPISODES.items()
}  # fmt: skip
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
