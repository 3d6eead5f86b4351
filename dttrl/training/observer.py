"""What a training run tells whoever watches it; the library itself prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dttrl.settings.commands import TrainConfig


class Observer:
    """Called in the order of events; must not change what it is given. This one ignores everything."""

    def start(self, config: TrainConfig, run: Path) -> None:
        """Say that the run begins or goes on."""

    def phase(self, name: str, done: int, total: int) -> None:
        """Say how far a part of a step (sample, score, update, evaluate) is."""

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Say that a step is done; ``metrics`` is its line of ``metrics.jsonl``."""

    def evaluation(self, step: int, split: str, summary: Mapping[str, Any]) -> None:
        """Say how the policy after ``step`` steps does on a split."""

    def end(self, run: Path) -> None:
        """Say that the run is complete."""
