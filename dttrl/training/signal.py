"""From a run's settings and scored questions to the arguments of ``training_signal``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dttrl.scoring import ScoredQuestion
from dttrl.settings.commands import TrainConfig
from dttrl.training_signal import NO_GOLD, ScoredBatch


def scored_batch(step: int, scored: Sequence[ScoredQuestion], config: TrainConfig) -> ScoredBatch:
    """Return the batch of a step; gold classes are in it where any question has gold."""
    golds = [NO_GOLD if question.gold_class is None else question.gold_class for question in scored]
    return ScoredBatch(
        step=step,
        class_BG=np.stack([question.class_G for question in scored]),
        confidence_BG=np.stack([question.confidence_G for question in scored]),
        measure=config.scoring.measure,
        gold_class_B=np.array(golds, dtype=np.int32) if set(golds) != {NO_GOLD} else None,
    )
