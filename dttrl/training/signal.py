"""From a run's settings and scored questions to the arguments of ``training_signal``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dttrl.config import TrainConfig
from dttrl.scoring import ScoredQuestion
from dttrl.training_signal import NO_GOLD, ScoredBatch, SignalSettings


def signal_settings(config: TrainConfig) -> SignalSettings:
    """Return the choices of the signal that a run was configured with."""
    return SignalSettings(
        n_train=config.train_samples,
        select=config.select,
        tau=config.tau,
        diversity_over=config.diversity_over,
        f_vote=config.f_vote,
        reject=config.reject,
        monotone=config.monotone,
        min_positives=config.min_positives,
        centre=config.centre,
    )


def scored_batch(step: int, scored: Sequence[ScoredQuestion], config: TrainConfig) -> ScoredBatch:
    """Return the batch of a step; gold classes are in it where any question has gold."""
    golds = [NO_GOLD if question.gold_class is None else question.gold_class for question in scored]
    return ScoredBatch(
        step=step,
        class_BG=np.stack([question.class_G for question in scored]),
        confidence_BG=np.stack([question.confidence_G for question in scored]),
        measure=config.measure,
        gold_class_B=np.array(golds, dtype=np.int32) if set(golds) != {NO_GOLD} else None,
    )
