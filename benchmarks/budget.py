"""Claim: the paper's whole budget table in under 60 s on two cores and under 4 GB, against a loop of votes.

The grid is 388 questions x 320 samples x 6 budgets x 64 repeats x 6 methods on generated data. The loop votes
one draw at a time in plain Python, with scikit-learn's GaussianMixture for DistriVoting (one start, its
defaults) as published scripts do, on some of the same draws; ratios are of the time of a vote, by method.

    python benchmarks/budget.py [--workers 2] [--loop-votes 30]
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from dttrl.analysis.budget import BUDGETS, PAPER_METHODS, Benchmark, Samples, budget_table, draws

SIZES = {"hmmt2025": 30, "gpqa-d": 198, "aime2024": 30, "aime2025": 30, "brumo2025": 100}
N_SAMPLES, REPEATS = 320, 64

Answers, Values = list[int], list[float]


def generate(name: str, size: int, seed: int) -> Benchmark:
    """Questions of mixed difficulty; right rollouts are surer on the average; some give no answer."""
    rng = np.random.default_rng([seed, size])
    questions = []
    for number in range(size):
        right = rng.random(N_SAMPLES) < rng.beta(1.5, 0.8)
        wrong = 1 + np.minimum(rng.geometric(rng.uniform(0.1, 0.6), N_SAMPLES), 40)
        classes = np.where(right, 0, wrong)
        classes[rng.random(N_SAMPLES) < 0.03] = -1
        gap = rng.uniform(0.0, 3.0)
        confidence = 12 + rng.normal(0, 1 + 0.5 * rng.random(), N_SAMPLES) + gap * right
        present, inverse = np.unique(classes[classes >= 0], return_inverse=True)
        classes[classes >= 0] = inverse
        questions.append(
            Samples(f"{name}-{number}", classes.astype(np.int32), confidence, np.asarray(present == 0))
        )
    return Benchmark(name, questions, has_confidence=True)


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
        before, size = share, size * 0.75
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


def split(values: Values) -> NDArray[np.bool_]:
    from sklearn.mixture import GaussianMixture

    data = np.array(values)[:, None]
    model = GaussianMixture(2, random_state=0).fit(data)
    means, deviations = model.means_[:, 0], np.sqrt(model.covariances_[:, 0, 0])
    density = -np.log(deviations) - 0.5 * ((data - means) / deviations) ** 2
    high = int(np.argmax(means))
    return np.asarray(density[:, high] > density[:, 1 - high])


def loop_distrivoting(answers: Answers, values: Values) -> int | None:
    positive = split(values)
    up, down = np.flatnonzero(positive).tolist(), np.flatnonzero(~positive).tolist()
    first = hierarchical([answers[i] for i in up], [values[i] for i in up])
    turned = max(values) + min(values)
    wrong = hierarchical([answers[i] for i in down], [turned - values[i] for i in down])
    if first == wrong or wrong is None or first is None:
        return first
    left = [i for i, answer in enumerate(answers) if answer != wrong]
    if len(left) < 4:
        return first
    again = split([values[i] for i in left])
    kept = [i for i, good in zip(left, again.tolist(), strict=True) if good]
    return hierarchical([answers[i] for i in kept], [values[i] for i in kept]) if kept else first


LOOPS = {
    "mob": loop_mob,
    "bon": loop_bon,
    "sc": loop_sc,
    "wsc": elect,
    "deepconf": loop_deepconf,
    "distrivoting": loop_distrivoting,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--loop-votes", type=int, default=30, help="votes of the loop for each budget")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    benchmarks = [generate(name, size, seed=1) for name, size in SIZES.items()]
    questions = [question for benchmark in benchmarks for question in benchmark.questions]
    votes = len(questions) * len(BUDGETS) * REPEATS

    began = time.perf_counter()
    table = budget_table(benchmarks, repeats=REPEATS, workers=options.workers)
    whole = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"grid: {len(table.cells)} cells, {votes} votes a method, {options.workers} workers: {whole:.1f} s")
    print(f"peak memory: {peak:.2f} GB")

    print("method        ours us/vote  loop us/vote  ratio  same answer")
    for method in PAPER_METHODS:
        began = time.perf_counter()
        budget_table(benchmarks, methods=[method], repeats=REPEATS, workers=1)
        ours = (time.perf_counter() - began) / votes
        loop, agree, count = 0.0, 0, 0
        for budget in BUDGETS:
            for samples in questions[:: max(1, len(questions) // options.loop_votes)]:
                order = draws(samples, [budget], repeats=REPEATS, seed=0)[0][0]
                kept = order[samples.class_N[order] >= 0]
                answers, values = samples.class_N[kept].tolist(), samples.weight_N[kept].tolist()
                began = time.perf_counter()
                winner = LOOPS[method](answers, values)
                loop += time.perf_counter() - began
                count += 1
                agree += winner == _ours(method, samples, order)
        loop /= count
        print(f"{method:12}  {ours * 1e6:12.1f}  {loop * 1e6:12.1f}  {loop / ours:5.0f}  {agree}/{count}")


def _ours(method: str, samples: Samples, order: NDArray[np.int64]) -> int:
    from dttrl.voting.registry import parse_method

    vote = parse_method(method).vote(samples.class_N[order][None, :], samples.weight_N[order][None, :])
    return int(vote.vote.winner_R[0])


if __name__ == "__main__":
    main()
