"""Which runs the findings rest on: starts, methods, ablations, seeds, in the order of their importance.

A start is a model at a level of competence with its questions. The plan ``small`` has two families (sums,
and products with a digit, of numbers of three and four digits, worked without carrying, carried in the last
step) by two levels of one pre-training: one where the vote is mostly right, one where it is wrong on about a
third. The plan ``smollm2`` has one fine-tuned SmolLM2-135M-Instruct and its two families. ``latent`` and
``latent-smollm2`` compare labels by the latent-answer vote with others, from the same starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

Options = Mapping[str, str]

STARTS = {
    "sums-right": ("+", 0.65),
    "sums-wrong": ("+", 0.30),
    "products-right": ("*", 0.85),
    "products-wrong": ("*", 0.55),
}
"""Name of a start: operation of the family, share of right samples at which pre-training was stopped."""
METHODS = ("ttrl-gt", "ttrl", "ttrl-wsc", "distri-wsc", "distri-gmm")
SEEDS = (0, 1, 2)
BASE: dict[str, str] = {
    "template": "raw", "max-new-tokens": "56", "batch-size": "512", "region": "all", "votes": "64",
    "train-samples": "32", "questions-per-step": "8", "learning-rate": "1e-5", "schedule": "constant",
    "beta": "0", "weight-decay": "0", "eval-temperature": "1.0", "eval-top-p": "1.0", "eval-samples": "16",
    "checkpoint-every": "0", "dtype": "float32",
}  # fmt: skip
"""The quickstart's settings (``data/quickstart/train.yaml``)."""
ABLATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "centre": ("distri-gmm", {"centre": "question"}),
    "no-shift": ("distri-gmm", {"no-shift-correction": ""}),
    "no-history": ("distri-gmm", {"label": "progressive:window=0"}),
    "perplexity": ("distri-gmm", {"measure": "perplexity"}),
    "wsc-perplexity": ("ttrl-wsc", {"measure": "perplexity"}),
    "last-step": ("distri-gmm", {"region": "last-step"}),
    "tau-0.4": ("distri-gmm", {"tau": "0.4"}),
    "wsc-tau-0.4": ("distri-wsc", {"tau": "0.4"}),
    "train-64": ("distri-gmm", {"train-samples": "64"}),
    "reject-always": ("distri-gmm", {"label": "progressive:reject=always"}),
    "hierarchical": ("distri-gmm", {"label": "progressive:f=hierarchical"}),
    "centre-perplexity": ("distri-gmm", {"centre": "question", "measure": "perplexity"}),
    "window-5": ("distri-gmm", {"label": "progressive:window=5"}),
    "entropy": ("distri-gmm", {"measure": "entropy"}),
    "tau-0.2": ("distri-gmm", {"tau": "0.2"}),
    "reject-off": ("distri-gmm", {"label": "progressive:f=hierarchical,reject=off"}),
    "balanced": ("distri-gmm", {"select": "balanced"}),
    "ttrl-64": ("ttrl", {"train-samples": "64"}),
}
"""Name of a variant: method, and what is not as in :data:`BASE`; the first ones matter most."""
LATENT: dict[str, tuple[str, dict[str, str]]] = {
    "ttrl": ("ttrl", {}),
    "distri-gmm": ("distri-gmm", {}),
    "distri-gmm-perplexity": ("distri-gmm", {"measure": "perplexity"}),
    "latent": ("distri-latent", {"measure": "perplexity"}),
    "latent-weighed": ("distri-latent", {"measure": "perplexity", "weigh-labels": ""}),
    "latent-no-penalty": ("ttrl-latent", {"measure": "perplexity"}),
    "latent-weighed-no-penalty": ("ttrl-latent", {"measure": "perplexity", "weigh-labels": ""}),
    "latent-auto": ("distri-latent", {"measure": "auto"}),
}
"""Variants of the plans of the latent-answer vote, like :data:`ABLATIONS`; the first ones matter most."""
LATENT_SMOLLM2 = (
    "ttrl",
    "distri-gmm",
    "latent",
    "latent-weighed",
    "latent-weighed-no-penalty",
    "latent-auto",
)
LATENT_ONCE = ("latent-auto",)
"""Variants with one seed: where auto takes perplexity, they repeat another one."""
KEPT = ("ttrl-gt", "ttrl", "distri-gmm")
"""Methods whose first seed keeps its rollouts."""
LATENT_KEPT = ("ttrl", "latent")


PLANS = ("small", "smollm2", "latent", "latent-smollm2")
SMOLLM2_STARTS = ("two-steps", "long-sums")
SMOLLM2_METHODS = ("ttrl-gt", "ttrl", "distri-gmm")
SMOLLM2_BASE: dict[str, str] = BASE | {
    "template": "chat", "max-new-tokens": "120", "learning-rate": "5e-6", "dtype": "auto",
}  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """One training run."""

    name: str
    start: str
    options: Options
    keep_rollouts: bool


def on_smollm2(plan: str) -> bool:
    """Return whether a plan starts from the fine-tuned SmolLM2."""
    return plan.endswith("smollm2")


def starts(plan: str) -> tuple[str, ...]:
    """Return the names of a plan's starts."""
    return SMOLLM2_STARTS if on_smollm2(plan) else tuple(STARTS)


def base(plan: str) -> dict[str, str]:
    """Return the options that all runs of a plan share."""
    return SMOLLM2_BASE if on_smollm2(plan) else BASE


def runs(plan: str, *, steps: int, eval_every: int, seeds: int = 3) -> list[Planned]:
    """Return all runs of a plan, the most important ones first.

    Seed by seed, so that a plan that is cut short is a smaller one and not a lopsided one. In ``small`` the
    ablations follow the methods, from the starts with wrong votes only. The plans of the latent-answer vote
    go variant by variant within a seed.
    """
    shared = base(plan) | {"steps": str(steps), "eval-every": str(eval_every)}
    if plan.startswith("latent"):
        shared["checkpoint-every"] = "20"
        return [
            _planned(shared, start, name, {"method": method, **changed}, seed, LATENT_KEPT)
            for seed in range(seeds)
            for name, (method, changed) in LATENT.items()
            if (not on_smollm2(plan) or name in LATENT_SMOLLM2) and (not seed or name not in LATENT_ONCE)
            for start in starts(plan)
        ]
    found = [
        _planned(shared, start, method, {"method": method}, seed, KEPT)
        for seed in range(seeds)
        for start in starts(plan)
        for method in (SMOLLM2_METHODS if on_smollm2(plan) else METHODS)
    ]
    if on_smollm2(plan):
        return found
    return found + [
        _planned(shared, start, name, {"method": method, **changed}, seed, KEPT)
        for seed in range(seeds)
        for name, (method, changed) in ABLATIONS.items()
        for start in STARTS
        if start.endswith("-wrong")
    ]


def _planned(
    shared: Options, start: str, name: str, changed: Options, seed: int, kept: Collection[str]
) -> Planned:
    options = dict(shared) | dict(changed) | {"seed": str(seed)}
    return Planned(f"{start}.{name}.{seed}", start, options, keep_rollouts=name in kept and seed == 0)
