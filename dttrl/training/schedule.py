"""Which questions a step trains on, and at which learning rate; both are functions of the step alone."""

from __future__ import annotations

import math

from dttrl import rng
from dttrl.settings.sections import Update


def steps_per_epoch(n_questions: int, questions_per_step: int) -> int:
    """Return how many full batches an epoch has; fewer questions than a batch are one batch."""
    return max(1, n_questions // questions_per_step)


def batch_indices(step: int, n_questions: int, questions_per_step: int, *, seed: int) -> list[int]:
    """Return the questions of ``step`` (from 1): a slice of the epoch's own permutation.

    The rest of a permutation that does not fill a batch is left out of that epoch (as TTRL's loader does),
    another rest each time. Nothing is carried from step to step, so a resumed run sees the same batches.
    """
    per_epoch = steps_per_epoch(n_questions, questions_per_step)
    epoch, position = divmod(step - 1, per_epoch)
    order = rng.derive(seed, step=epoch, purpose="order").permutation(n_questions)
    return [int(i) for i in order[position * questions_per_step : (position + 1) * questions_per_step]]


def total_steps(update: Update, n_questions: int) -> int:
    """Return how many steps a run has: ``steps``, or ``episodes`` passes over the questions."""
    return update.steps or update.episodes * steps_per_epoch(n_questions, update.questions_per_step)


def learning_rate(step: int, total: int, update: Update) -> float:
    """Return the rate of ``step`` (1 to ``total``): a linear rise over the warm-up share, then the schedule.

    Cosine and linear fall to zero after the last step, so that the last step still learns.
    """
    peak, rising = update.learning_rate, math.ceil(update.warmup * total - 1e-9)
    if step <= rising:
        return peak * step / rising
    if update.schedule == "constant":
        return peak
    progress = (step - rising - 1) / max(total - rising, 1)
    if update.schedule == "linear":
        return peak * (1 - progress)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))
