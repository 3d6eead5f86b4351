"""The numbers of one training step, under TTRL's names where TTRL has them (arXiv:2504.16084)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dttrl.data.rollouts import Rollout
from dttrl.method.ballots import FloatArray
from dttrl.method.measure_choice import Evidence
from dttrl.method.scored import Scored
from dttrl.method.separation import auroc
from dttrl.method.training_signal import TrainingSignal

Metrics = dict[str, float | str | None]

_MIXTURE = ("mean_neg", "std_neg", "weight_neg", "mean_pos", "std_pos", "weight_pos", "degenerate")


def step_metrics(scored: Scored, signal: TrainingSignal) -> Metrics:
    """Return what the votes of a step were and, where gold answers exist, how good they were.

    Ratios are over all voted rollouts; the ``post_`` ones over the trained. Where questions stopped early, a
    ratio is the mean of the questions' own. Gold answers are only measured with here.
    """
    drawn_BG = scored.drawn_RN
    missing_BG = ~np.isfinite(scored.confidence_RN)
    metrics: Metrics = {
        "majority_ratio": float(signal.vote.majority_ratio_R.mean()),
        "label_ratio": float(signal.vote.label_ratio_R.mean()),
        "majority_voting_reward": _share(signal.reward_BG > 0, drawn_BG),
        "diversity": float(signal.diversity_B.mean()),
        "diversity_weight": float(signal.weight_B.mean()),
        "no_answer_rate": _share(scored.class_RN < 0, drawn_BG),
        "no_label": float((signal.label_B < 0).mean()),
        "ties": float(signal.vote.tie_R.mean()),
        "advantage_abs": float(np.abs(signal.advantage_BM).mean()),
        "confidence_mean": _finite_mean(scored.confidence_RN),
        "confidence_missing": _share(missing_BG, drawn_BG),
    }
    metrics |= _mixture_metrics(signal, scored) | _latent_metrics(signal)
    if scored.has_gold_R.any():
        metrics |= _gold_metrics(scored, signal)
    return metrics


def rollout_metrics(rollouts: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """Return lengths, truncation and the mean token entropy (nats) of a step's rollouts."""
    flat = [rollout for group in rollouts for rollout in group]
    lengths = np.array([rollout.num_tokens for rollout in flat], dtype=np.float64)
    entropies = np.concatenate([rollout.token_entropy for rollout in flat]) if flat else np.empty(0)
    return {
        "tokens": float(lengths.sum()),
        "mean_tokens": float(lengths.mean()),
        "truncated_rate": float(np.mean([rollout.finish_reason == "length" for rollout in flat])),
        "entropy": _finite_mean(entropies.astype(np.float64)),
    }


def evidence_metrics(evidence: Sequence[Evidence]) -> Metrics:
    """Return which measure and region were chosen, and what spoke for them, where there was a choice."""
    if not evidence:
        return {}
    return {"measure": evidence[0].name, "measure_gain": evidence[0].gain}


def stopping_metrics(rollouts: Sequence[Sequence[Rollout]], most: int) -> dict[str, float]:
    """Return what a step left undrawn of ``most`` rollouts a question, as its questions were sure before."""
    left_B = np.array([most - len(group) for group in rollouts])
    mean_B = np.array([np.mean([rollout.num_tokens for rollout in group]) for group in rollouts])
    return {
        "drawn_rollouts": float(most * len(rollouts) - left_B.sum()),
        "unspent_rollouts": float(left_B.sum()),
        "unspent_tokens": float(left_B @ mean_B),
        "stopped": float((left_B > 0).sum()),
        "questions": float(len(rollouts)),
    }


def _gold_metrics(scored: Scored, signal: TrainingSignal) -> Metrics:
    """Means over the questions that have gold answers."""
    known_B = scored.has_gold_R
    drawn_BG = scored.drawn_RN[known_B]
    gold_B, correct_BG = scored.gold_class_R[known_B], scored.correct_RN[known_B]
    confidence_BG, trained_BM = scored.confidence_RN[known_B], signal.trained_BM[known_B]
    rewarded_BG = signal.reward_BG[known_B] > 0
    trained_correct_BM = np.take_along_axis(correct_BG, trained_BM, axis=1)
    trained_rewarded_BM = np.take_along_axis(rewarded_BG, trained_BM, axis=1)
    labelled_B = signal.label_B[known_B] == gold_B
    # The gold answer cannot be a wrong label: where no rollout gave it there is just no label.
    judged_B = gold_B >= 0 if signal.by_gold else np.ones(len(gold_B), dtype=bool)
    return {
        "label_accuracy": _finite_mean((labelled_B & (gold_B >= 0))[judged_B].astype(np.float64)),
        "majority_accuracy": float(((signal.vote.majority_R[known_B] == gold_B) & (gold_B >= 0)).mean()),
        "reward_accuracy": _share(rewarded_BG == correct_BG, drawn_BG),
        "ground_truth_ratio": _share(correct_BG, drawn_BG),
        f"pass@{correct_BG.shape[1]}": float(correct_BG.any(axis=1).mean()),
        "post_reward_accuracy": float((trained_rewarded_BM == trained_correct_BM).mean()),
        "post_ground_truth_ratio": float(trained_correct_BM.mean()),
        f"post_pass@{trained_BM.shape[1]}": float(trained_correct_BM.any(axis=1).mean()),
        "auroc": auroc(confidence_BG.ravel(), correct_BG.ravel()),
        "auroc_within": _mean_auroc(confidence_BG, correct_BG),
    }


def _mixture_metrics(signal: TrainingSignal, scored: Scored) -> Metrics:
    if signal.progressive is None or signal.distrivote is None:
        return {}
    mixture = signal.progressive.mixture
    return {
        "fallbacks": float((signal.distrivote.fallback_R > 0).mean()),
        "rejections": float((signal.distrivote.rejected_R >= 0).mean()),
        "positive_rate": float(signal.distrivote.n_pos_R.sum() / scored.drawn_RN.sum()),
        **{f"mixture_{name}": getattr(mixture, name) for name in _MIXTURE},
        "shift": signal.progressive.shift,
        "pool_size": float(signal.progressive.pool_size),
    }


def _latent_metrics(signal: TrainingSignal) -> Metrics:
    if signal.probability_B is None:
        return {}
    metrics: Metrics = {"expected_accuracy": _finite_mean(np.nan_to_num(signal.probability_B))}
    if signal.latent is not None:
        metrics |= {
            "latent_separation": float(signal.latent.separation),
            "latent_gain": float(signal.latent.gain),
            "latent_none": float(signal.latent.none),
        }
    return metrics


def _share(flag_BG: NDArray[np.bool_], drawn_BG: NDArray[np.bool_]) -> float:
    """Share of the drawn rollouts; a question that stopped early counts as much as one that did not."""
    if drawn_BG.all():
        return float(flag_BG.mean())
    return float(((flag_BG & drawn_BG).sum(axis=1) / drawn_BG.sum(axis=1)).mean())


def _mean_auroc(confidence_BG: FloatArray, correct_BG: NDArray[np.bool_]) -> float:
    """AUROC within each question, averaged over those that have both right and wrong rollouts."""
    values = [
        auroc(confidence_G, correct_G)
        for confidence_G, correct_G in zip(confidence_BG, correct_BG, strict=True)
    ]
    return _finite_mean(np.array(values))


def _finite_mean(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
