"""A run folder for training at scale, and responses of its engines, without OpenRLHF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import dump_config, load_config
from dttrl.training.openrlhf.controller import Controller
from dttrl.training.run_folder import create_run
from dttrl.training.setup import read_splits

QUICKSTART = Path(__file__).resolve().parents[1] / "data/quickstart"


def make_run(folder: Path, **changed: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "model": str(QUICKSTART / "model"),
        "questions": QUICKSTART / "questions.jsonl",
        "template": "raw",
        "region": "all",
        "votes": 8,
        "train_samples": 4,
        "questions_per_step": 3,
        "steps": 2,
        "engine": "openrlhf",
        "run": folder,
        **changed,
    }
    config = load_config(TrainConfig, None, given)
    create_run(folder, dump_config(config), read_splits(config), overwrite=False)
    (folder / "openrlhf").mkdir()
    (folder / "openrlhf/extra.json").write_text("[]")
    return config


def drawn(controller: Controller, random: np.random.Generator) -> list[dict[str, Any]]:
    """Return what the executor returns for a step: right and wrong answers with random statistics."""
    tokenizer, found = controller._loaded.tokenizer, []
    questions = controller.splits["train"][: controller.config.update.questions_per_step]
    for question, text, label in zip(questions, *controller.rows(questions), strict=True):
        prompt = json.loads(label)["prompt_ids"]
        for _ in range(controller.config.signal.votes):
            answer = question.answer if random.random() < 0.5 else str(random.integers(100, 103))
            written = "1" * int(random.integers(1, 9)) + f"\n\\boxed{{{answer}}}"
            ids = tokenizer(written, add_special_tokens=False)["input_ids"]
            statistics = np.full((4, len(ids)), random.normal(3, 1), np.float32)
            found.append(
                {
                    "prompt": text,
                    "label": label,
                    "images": None,
                    "mm_train_inputs": None,
                    "observation_tokens": prompt + ids,
                    "action_ranges": [(len(prompt), len(prompt) + len(ids))],
                    "rollout_log_probs": None,
                    "truncated": False,
                    "reward": 0.0,
                    "scores": 0.0,
                    "extra_logs": {},
                    "dttrl": {"token_ids": ids, "statistics": statistics, "finish_reason": "stop"},
                }
            )
    return found
