from __future__ import annotations

from typing import Any

from pydantic import Field

from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.settings.sections import Update
from dttrl.training.loop import settings_digest

NEEDED: dict[str, Any] = {"model": "start", "questions": "q.jsonl", "run": "runs/first"}


class LaterUpdate(Update):
    added: int = Field(3, description="A setting that did not exist when the run began.")


class LaterConfig(TrainConfig):
    update: LaterUpdate


def digest(of: type[TrainConfig] = TrainConfig, **changed: Any) -> str:
    return settings_digest(load_config(of, overrides=NEEDED | changed))


def test_what_decides_the_result_decides_the_digest() -> None:
    assert digest(run="runs/moved") == digest()
    assert digest(tau=0.2) != digest()
    assert digest(label="progressive:min=3") != digest()
    assert digest(method="distri-gmm") != digest() != digest(method="ttrl")


def test_a_new_setting_left_at_its_default_keeps_the_digest() -> None:
    assert digest(LaterConfig, tau=0.2) == digest(tau=0.2)
    assert digest(LaterConfig, added=4) != digest()


def test_runs_of_earlier_releases_keep_their_digest() -> None:
    """It is compared with the one in a checkpoint, so it must not change with the layout of the settings."""
    older = {"method": "distri-gmm", "tau": 0.2, "learning_rate": 1e-5, "heldout": "h.jsonl", "stop": ("a",)}
    assert digest(**older) == "87cff4783d13be12"
