"""Claim: the paper's whole budget table in under 60 s on two cores and under 4 GB, against a loop of votes.

The grid is 388 questions x 320 samples x 6 budgets x 64 repeats x 6 methods on generated data. The loop draws
rollouts and votes on them one draw at a time in plain Python, with scikit-learn's GaussianMixture for
DistriVoting: once with the same algorithm (our five starts, EM until it stands) and once with the library's
defaults (one start, a loose tolerance). Ratios are of the time of a vote, by method; answers are compared on
the same draws. The latent-answer vote, one fit a draw to all questions, is set against our DistriVoting.

    python benchmarks/budget.py [--workers 2] [--loop-votes 30]
"""

from __future__ import annotations

import argparse
import random
import resource
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dttrl.analysis.budget import BUDGETS, Benchmark, budget_table, draws
from dttrl.method.mixture import START_QUANTILES
from dttrl.method.scored import Scored

SIZES = {"hmmt2025": 30, "gpqa-d": 198, "aime2024": 30, "aime2025": 30, "brumo2025": 100}
N_SAMPLES, REPEATS = 320, 64

Answers, Values = list[int], list[float]


def generate(name: str, size: int, seed: int) -> Benchmark:
    """Questions of mixed difficulty; right rollouts are surer on the average; some give no answer."""
    rng = np.random.default_rng([seed, size])
    class_RN = np.empty((size, N_SAMPLES), dtype=np.int32)
    confidence_RN = np.empty(class_RN.shape)
    right_RC = np.zeros((size, 42), dtype=bool)
    for number in range(size):
        right = rng.random(N_SAMPLES) < rng.beta(1.5, 0.8)
        wrong = 1 + np.minimum(rng.geometric(rng.uniform(0.1, 0.6), N_SAMPLES), 40)
        classes = np.where(right, 0, wrong)
        classes[rng.random(N_SAMPLES) < 0.03] = -1
        gap = rng.uniform(0.0, 3.0)
        confidence = 12 + rng.normal(0, 1 + 0.5 * rng.random(), N_SAMPLES) + gap * right
        present, inverse = np.unique(classes[classes >= 0], return_inverse=True)
        classes[classes >= 0] = inverse
        class_RN[number], confidence_RN[number], right_RC[number, : present.size] = (
            classes,
            confidence,
            present == 0,
        )
    scored = Scored(
        class_RN,
        confidence_RN,
        query_id=[f"{name}-{number}" for number in range(size)],
        gold=["0"] * size,
        right_RC=right_RC,
    )
    return Benchmark(name, [scored], has_confidence=True)


def elect(answers: Answers, weights: Values) -> int | None:
    sums: defaultdict[int, float] = defaultdict(float)
    for answer, weight in zip(answers, weights, strict=True):
        sums[answer] += weight
    return max(sums, key=lambda answer: sums[answer]) if sums else None


def loop_sc(answers: Answers, _: Values) -> int | None:
    return Counter(answers).most_common(1)[0][0] if answers else None


def loop_bon(answers: Answers, values: Values) -> int | None:
    return answers[int(np.argmax(values))] if answers else None


def loop_mob(answers: Answers, values: Values) -> int | None:
    """Adaptive m with ratio 0.75, by the closed form."""
    n = len(answers)
    order = sorted(range(n), key=lambda i: values[i])
    best, nearest, before, size = None, float("inf"), None, float(n)
    while size >= 1:
        share: defaultdict[int, float] = defaultdict(float)
        for place, i in enumerate(order):
            share[answers[i]] += ((place + 1) / n) ** int(size) - (place / n) ** int(size)
        if before is not None:
            distance = sum(abs(share[a] - before[a]) for a in share)
            if distance < nearest:
                nearest, best = distance, share
        before, last = share, int(size)
        while int(size) == last:
            size *= 0.75
    chosen = best or before or {}
    return max(chosen, key=lambda a: chosen[a]) if chosen else None


def loop_deepconf(answers: Answers, values: Values) -> int | None:
    bar = np.percentile(values, 90)
    kept = [i for i, value in enumerate(values) if value >= bar]
    return elect([answers[i] for i in kept], [values[i] for i in kept])


def hierarchical(answers: Answers, values: Values) -> int | None:
    if not answers:
        return None
    low, width = min(values), (max(values) - min(values)) / 10
    bins: defaultdict[int, list[int]] = defaultdict(list)
    for i, value in enumerate(values):
        bins[min(int((value - low) / width), 9) if width else 0].append(i)
    votes, weights = [], []
    for members in bins.values():
        winner = elect([answers[i] for i in members], [values[i] for i in members])
        given = [values[i] for i in members if answers[i] == winner]
        votes.append(winner if winner is not None else -1)
        weights.append(sum(given) / len(given))
    return elect(votes, weights)


def fit_default(data: NDArray[np.float64]) -> Any:
    from sklearn.mixture import GaussianMixture

    return GaussianMixture(2, random_state=0).fit(data)


def fit_same(data: NDArray[np.float64]) -> Any:
    """The likeliest of the five starts whose components are alive, as ``dttrl.method.mixture`` chooses."""
    from sklearn.mixture import GaussianMixture

    scaled = (data - data.mean()) / data.std()
    found = []
    for pair in START_QUANTILES:
        model = GaussianMixture(
            2,
            tol=1e-11,
            max_iter=2000,
            reg_covar=1e-9,
            weights_init=[0.5, 0.5],
            means_init=np.quantile(scaled, pair)[:, None],
            precisions_init=np.ones((2, 1, 1)),
        ).fit(scaled)
        alive = model.weights_.min() * len(data) >= 1.5 and model.covariances_.min() >= 1e-6
        found.append((alive, model.score(scaled), model))
    best = max(found, key=lambda one: one[:2])[2]
    best.means_ = best.means_ * data.std() + data.mean()
    best.covariances_ = best.covariances_ * data.var()
    return best


def split(values: Values, fit: Callable[[NDArray[np.float64]], Any]) -> NDArray[np.bool_]:
    data = np.array(values)[:, None]
    model = fit(data)
    means, deviations = model.means_[:, 0], np.sqrt(model.covariances_[:, 0, 0])
    density = -np.log(deviations) - 0.5 * ((data - means) / deviations) ** 2
    high = int(np.argmax(means))
    return np.asarray(density[:, high] > density[:, 1 - high])


def loop_distrivoting(
    answers: Answers, values: Values, fit: Callable[[NDArray[np.float64]], Any] = fit_same
) -> int | None:
    positive = split(values, fit)
    up, down = np.flatnonzero(positive).tolist(), np.flatnonzero(~positive).tolist()
    first = hierarchical([answers[i] for i in up], [values[i] for i in up])
    turned = max(values) + min(values)
    wrong = hierarchical([answers[i] for i in down], [turned - values[i] for i in down])
    if first == wrong or wrong is None or first is None:
        return first
    left = [i for i, answer in enumerate(answers) if answer != wrong]
    if len(left) < 4:
        return first
    again = split([values[i] for i in left], fit)
    kept = [i for i, good in zip(left, again.tolist(), strict=True) if good]
    return hierarchical([answers[i] for i in kept], [values[i] for i in kept]) if kept else first


LOOPS = {
    "mob": loop_mob,
    "bon": loop_bon,
    "sc": loop_sc,
    "wsc": elect,
    "deepconf": loop_deepconf,
    "distrivoting": loop_distrivoting,
    "distrivoting, default fit": partial(loop_distrivoting, fit=fit_default),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--loop-votes", type=int, default=12, help="votes of the loop for each budget")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    benchmarks = [generate(name, size, seed=1) for name, size in SIZES.items()]
    questions = [
        scored.take([r])
        for benchmark in benchmarks
        for scored in benchmark.blocks
        for r in range(len(scored.query_id))
    ]
    votes = len(questions) * len(BUDGETS) * REPEATS

    began, busy = time.perf_counter(), time.process_time()
    table = budget_table(benchmarks, repeats=REPEATS, workers=options.workers)
    whole, busy = time.perf_counter() - began, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"grid: {len(table.cells)} cells, {votes} votes a method, {options.workers} workers: "
        f"{whole:.1f} s, {busy:.1f} s of processor time"
    )
    print(f"peak memory: {peak:.2f} GB")

    print("method                     ours us/vote  loop us/vote  ratio  same answer")
    ours, taken = 0.0, {}
    for name, vote in LOOPS.items():
        method = name.partition(",")[0]
        if method == name:
            ours = taken[method] = _seconds(method, benchmarks) / votes
        loop, agree, count = 0.0, 0, 0
        for budget in BUDGETS:
            for one in questions[:: max(1, len(questions) // options.loop_votes)]:
                order = draws(one.query_id[0], N_SAMPLES, [budget], repeats=REPEATS, seed=0)[0][0]
                traces = list(zip(one.class_RN[0].tolist(), one.confidence_RN[0].tolist(), strict=True))
                kept = [traces[i] for i in order.tolist() if traces[i][0] >= 0]
                # A vote of microseconds is far below the clock's step: it is timed many times over.
                times = 1 if method == "distrivoting" else 200
                began = time.process_time()
                for _ in range(times):
                    drawn = [trace for trace in random.sample(traces, budget) if trace[0] >= 0]
                    assert drawn
                    winner = vote([answer for answer, _ in kept], [value for _, value in kept])
                loop += (time.process_time() - began) / times
                count += 1
                agree += winner == _ours(method, one, order)
        loop /= count
        print(f"{name:25}  {ours * 1e6:12.1f}  {loop * 1e6:12.1f}  {loop / ours:5.0f}  {agree}/{count}")
    latent = _seconds("latent", benchmarks) / votes
    print(f"{'latent':25}  {latent * 1e6:12.1f}")
    print(f"latent / distrivoting: {latent / taken['distrivoting']:.2f}")


def _seconds(method: str, benchmarks: list[Benchmark]) -> float:
    """Return the processor time of a method on the whole grid."""
    began = time.process_time()
    budget_table(benchmarks, methods=[method], repeats=REPEATS, workers=1)
    return time.process_time() - began


def _ours(method: str, one: Scored, order: NDArray[np.int64]) -> int:
    from dttrl.method.voting.registry import parse_method

    vote = parse_method(method).vote(one.class_RN[:, order], one.confidence_RN[:, order])
    return int(vote.vote.winner_R[0])


if __name__ == "__main__":
    main()
