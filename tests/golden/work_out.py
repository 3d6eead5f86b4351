"""Works the golden example by hand: plain Python and math, nothing of dttrl and no numpy.

    python tests/golden/work_out.py            print the working, as quoted in README.md
    python tests/golden/work_out.py --write    put the results into three_steps.json under "expected"

Every formula is written out as the paper has it; the expectation-maximisation is the textbook loop.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Mixture = dict[str, float]


def token_confidence(entries: list[float], k: int) -> float:
    """Minus the mean of the k largest log-probabilities that are there."""
    largest = sorted((entry for entry in entries if entry != -9999), reverse=True)[:k]
    return -sum(largest) / len(largest)


def first_token_of_last_step(tokens: list[str], answer: str | None) -> int:
    """Index of the first token after the last blank line before the answer's box (or before the end)."""
    text = "".join(tokens)
    end = text.rindex("\\boxed{") if answer is not None else len(text.rstrip())
    start = 0
    for i in range(end):
        if text[i] != "\n":
            continue
        j = i + 1
        while j < end and text[j] == " ":
            j += 1
        if j < end and text[j] == "\n":
            start = j + 1
    at = 0
    for index, token in enumerate(tokens):
        if at >= start:
            return index
        at += len(token)
    raise AssertionError("no token in the last step")


def normal(x: float, mean: float, std: float) -> float:
    return math.exp(-((x - mean) ** 2) / (2 * std**2)) / math.sqrt(2 * math.pi * std**2)


def fit(values: list[float]) -> Mixture:
    """Expectation-maximisation for two Gaussians, from the lower and the upper half of the sorted values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    parts = [ordered[:half], ordered[half:]]
    weight = [len(part) / len(ordered) for part in parts]
    mean = [sum(part) / len(part) for part in parts]
    std = [
        math.sqrt(sum((x - m) ** 2 for x in part) / len(part)) for part, m in zip(parts, mean, strict=True)
    ]
    moved = math.inf
    while moved > 1e-13:
        mass, total, square = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        shares = []
        for x in values:
            density = [weight[c] * normal(x, mean[c], std[c]) for c in (0, 1)]
            shares.append([density[c] / sum(density) for c in (0, 1)])
        before = [*mean, *std, *weight]
        for c in (0, 1):
            for x, share in zip(values, shares, strict=True):
                mass[c] += share[c]
                total[c] += share[c] * x
            mean[c] = total[c] / mass[c]
            for x, share in zip(values, shares, strict=True):
                square[c] += share[c] * (x - mean[c]) ** 2
            std[c] = math.sqrt(square[c] / mass[c])
            weight[c] = mass[c] / len(values)
        moved = max(abs(new - old) for new, old in zip([*mean, *std, *weight], before, strict=True))
    low, high = (0, 1) if mean[0] < mean[1] else (1, 0)
    return {
        "mean_neg": mean[low],
        "std_neg": std[low],
        "weight_neg": weight[low],
        "mean_pos": mean[high],
        "std_pos": std[high],
        "weight_pos": weight[high],
    }


def midpoint(mixture: Mixture) -> float:
    return (mixture["mean_pos"] + mixture["mean_neg"]) / 2


def is_positive(x: float, mixture: Mixture) -> bool:
    likely = normal(x, mixture["mean_pos"], mixture["std_pos"])
    return likely > normal(x, mixture["mean_neg"], mixture["std_neg"])


def vote(answers: list[str | None], confidences: list[float], voters: list[int]) -> str | None:
    """Majority; a tie goes to the larger summed confidence."""
    counts = Counter(answers[j] for j in voters if answers[j] is not None)
    if not counts:
        return None
    sums = {a: sum(confidences[j] for j in voters if answers[j] == a) for a in counts}
    return max(counts, key=lambda a: (counts[a], sums[a]))


def label_question(answers: list[str | None], confidences: list[float], mixture: Mixture) -> dict[str, Any]:
    """alg:pseudo_label, guarded: the negatives' answer is rejected only where the positives' vote differs."""
    everyone = list(range(len(answers)))
    positive = [is_positive(c, mixture) for c in confidences]
    positives = [j for j in everyone if positive[j] and answers[j] is not None]
    negatives = [j for j in everyone if not positive[j] and answers[j] is not None]
    first, wrong = vote(answers, confidences, positives), vote(answers, confidences, negatives)
    rejected, fallback = None, ""
    if first is None:
        label, fallback = vote(answers, confidences, everyone), "no-positives"
    elif wrong is not None and wrong != first:
        kept = [j for j in positives if answers[j] != wrong]
        rejected = wrong if len(kept) < len(positives) else None
        label = vote(answers, confidences, kept)
    else:
        label = first
    return {
        "positive": positive,
        "positive_vote": first,
        "negative_vote": wrong,
        "rejected": rejected,
        "fallback": fallback,
        "label": label,
        "majority": vote(answers, confidences, everyone),
        "reward": [1.0 if a is not None and a == label else 0.0 for a in answers],
        "diversity": len({a for a in answers if a is not None}),
    }


def advantages(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / std if std > 0 else 0.0 for r in rewards]


def work(data: dict[str, Any]) -> list[dict[str, Any]]:
    k, n_train, tau = (data["settings"][name] for name in ("k", "n_train", "tau"))
    raw: list[list[float]] = []  # C of alg:framework: the confidences of each step, flat
    steps = []
    for number, step in enumerate(data["input"]):
        token_confidences, confidences, answers = [], [], []
        for question in step["questions"]:
            rows = [[token_confidence(e, k) for e in r["logprobs"]] for r in question["rollouts"]]
            token_confidences.append(rows)
            row = []
            for rollout, values in zip(question["rollouts"], rows, strict=True):
                inside = values[first_token_of_last_step(rollout["tokens"], rollout["answer"]) :]
                row.append(sum(inside) / len(inside))
            confidences.append(row)
            answers.append([rollout["answer"] for rollout in question["rollouts"]])
        raw.append([c for row in confidences for c in row])

        # alg:construct_distribution: every step is fitted again, as written
        local = [fit(values) for values in raw]
        shifts = [midpoint(local[number]) - midpoint(local[s]) for s in range(number)]
        pool = list(raw[number])
        for s in range(number):
            pool += [c + shifts[s] for c in raw[s]]
        mixture = fit(pool)
        uncorrected = fit([c for values in raw for c in values])

        questions = []
        for row, given in zip(confidences, answers, strict=True):
            questions.append(label_question(given, row, mixture))
            questions[-1]["positive_without_shift"] = [is_positive(c, uncorrected) for c in row]
        weights = [math.exp(q["diversity"]) for q in questions]
        for i, question in enumerate(questions):
            penalised = question["diversity"] <= tau * len(question["reward"])
            question["weight"] = weights[i] / sum(weights) if penalised else 1.0
            question["advantage"] = advantages(question["reward"][:n_train])
            question["weighted_advantage"] = [a * question["weight"] for a in question["advantage"]]
            question["token_confidence"], question["confidence"] = token_confidences[i], confidences[i]
        steps.append(
            {
                "step": step["step"],
                "local": local[number],
                "midpoint": midpoint(local[number]),
                "shift": shifts,
                "pool_size": len(pool),
                "mixture": mixture,
                "questions": questions,
            }
        )
    return steps


def show(data: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    for step, given in zip(steps, data["input"], strict=True):
        print(f"step {step['step']}")
        for name in ("local", "mixture"):
            m = step[name]
            for side in ("neg", "pos"):
                numbers = ", ".join(f"{what} {m[f'{what}_{side}']:.8f}" for what in ("mean", "std", "weight"))
                print(f"  {name:8s}{side}  {numbers}")
        print(f"  midpoint {step['midpoint']:.8f}  shifts {[round(s, 8) for s in step['shift']]}")
        print(f"  pool {step['pool_size']}")
        for question, source in zip(step["questions"], given["questions"], strict=True):
            print(f"  {source['query_id']}")
            for j, rollout in enumerate(source["rollouts"]):
                side = "+" if question["positive"][j] else "-"
                without = "+" if question["positive_without_shift"][j] else "-"
                print(
                    f"    {rollout['answer'] or 'none':5s} C {question['confidence'][j]:.8f} {side} "
                    f"(without shift {without})  reward {question['reward'][j]:.0f}"
                )
            print(
                f"    majority {question['majority']}  positives {question['positive_vote']}  "
                f"negatives {question['negative_vote']}  rejected {question['rejected']}  "
                f"fallback {question['fallback'] or '-'}  label {question['label']}"
            )
            print(
                f"    D {question['diversity']}  weight {question['weight']:.8f}  "
                f"A {question['advantage']}  A' {[round(a, 8) for a in question['weighted_advantage']]}"
            )


def main() -> None:
    path = HERE / "three_steps.json"
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    steps = work(data)
    show(data, steps)
    if "--write" in sys.argv[1:]:
        # The input keeps its own layout; the results are one question a line behind it.
        head = (
            text[: text.index(' "expected"')]
            if ' "expected"' in text
            else text.rstrip()[:-1].rstrip() + ",\n"
        )
        blocks = []
        for step in steps:
            lines = [f"   {json.dumps(question)}" for question in step["questions"]]
            rest = json.dumps({name: value for name, value in step.items() if name != "questions"})
            blocks.append(f'  {rest[:-1]}, "questions": [\n' + ",\n".join(lines) + "\n  ]}")
        path.write_text(head + ' "expected": [\n' + ",\n".join(blocks) + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
