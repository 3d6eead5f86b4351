from __future__ import annotations

from typing import Any

from pydantic import Field

from dttrl.config import TrainConfig, load_config
from dttrl.training.loop import settings_digest

NEEDED: dict[str, Any] = {"model": "start", "questions": "q.jsonl", "run": "runs/first"}


class LaterConfig(TrainConfig):
    added: int = Field(3, description="A setting that did not exist when the run began.")


def digest(of: type[TrainConfig] = TrainConfig, **changed: Any) -> str:
    return settings_digest(load_config(of, overrides=NEEDED | changed))


def test_what_decides_the_result_decides_the_digest() -> None:
    assert digest(run="runs/moved") == digest()
    assert digest(tau=0.2) != digest()
    assert digest(min_positives=3) != digest()


def test_a_new_setting_left_at_its_default_keeps_the_digest() -> None:
    assert digest(LaterConfig, tau=0.2) == digest(tau=0.2)
    assert digest(LaterConfig, added=4) != digest()
