"""Cost of labels: the cached history against refitting every past step, as the paper's algorithm is written.

Both label the same step of generated confidences (8 questions x 64 rollouts a step, drifting as in training).
The ratio is what caching saves at that step; a literal run pays its part at every step. The signal by the
latent-answer vote, with as many steps of sums behind it, is set against the mixture's.

    python benchmarks/labelling.py --steps 100
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from dttrl.method.history import History
from dttrl.method.methods import Signal
from dttrl.method.mixture import fit_mixture
from dttrl.method.partition import assign_positive
from dttrl.method.past_sums import PastSums
from dttrl.method.scored import Scored
from dttrl.method.training_signal import training_signal
from dttrl.method.voting.distrivoting import distrivoting
from dttrl.rng import derive

QUESTIONS, ROLLOUTS = 8, 64


def confidences(step: int) -> np.ndarray:
    """Two overlapping humps that drift to the right and settle, as in the paper's shift figure."""
    rng = derive(0, step=step, purpose="benchmark")
    right = rng.random((QUESTIONS, ROLLOUTS)) < 0.6
    drift = 4 * (1 - np.exp(-step / 30))
    return np.where(right, rng.normal(14, 1.5, right.shape), rng.normal(11, 1.2, right.shape)) + drift


def literal(past: list[np.ndarray], current: np.ndarray) -> np.ndarray:
    """alg:construct_distribution and eq:sample_assignment without any memory of earlier fits."""
    here = fit_mixture(current).midpoint
    shifted = [values + here - fit_mixture(values).midpoint for values in past]
    return assign_positive(current, fit_mixture(np.concatenate([*shifted, current])))


def seconds(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="steps before the one that is timed")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    past = [confidences(step) for step in range(1, options.steps + 1)]
    history = History()
    for step, values in enumerate(past, start=1):
        _, history = history.advance(step, values)
    current = confidences(options.steps + 1)
    classes = derive(0, purpose="classes").integers(0, 12, current.shape).astype(np.int32)
    batch = Scored(classes, current, options.steps + 1)

    progressive, _ = history.advance(options.steps + 1, current)
    agree = (assign_positive(current, progressive.mixture) == literal(past, current)).mean()
    cached = seconds(lambda: history.advance(options.steps + 1, current), options.repeats)
    refit = seconds(lambda: literal(past, current), max(1, options.repeats // 2))
    vote = seconds(lambda: distrivoting(classes, current, progressive.mixture), options.repeats)
    settings = Signal(method="distri-gmm")
    whole = seconds(lambda: training_signal(batch, history, settings), options.repeats)
    print(f"step {options.steps + 1}, pool of {progressive.pool_size}; partitions agree: {agree:.4f}")
    print(f"refit every past step / cached history : {refit / cached:8.1f}")
    print(f"history / vote of {QUESTIONS} questions          : {cached / vote:8.1f}")
    print(f"whole training signal / history        : {whole / cached:8.2f}")
    print(f"(training signal: {whole * 1e3:.1f} ms here)")

    by_latent, remembered = Signal(method="distri-latent"), PastSums()
    for step, values in enumerate(past, start=1):
        given = derive(0, step=step, purpose="classes").integers(0, 12, values.shape).astype(np.int32)
        _, remembered = remembered.pooled(step, given, values)
    latent = seconds(lambda: training_signal(batch, remembered, by_latent), options.repeats)
    print(f"signal by latent / by mixture          : {latent / whole:8.2f}")
    print(f"(signal by latent: {latent * 1e3:.1f} ms here)")


if __name__ == "__main__":
    main()
