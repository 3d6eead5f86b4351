"""How good a model is at the question family: sampled accuracy, vote accuracy, what confidence knows.

Self-contained on purpose (a short sampling loop with a KV cache), so that the recipe needs nothing but
torch and transformers. Axis letters: Q questions, N samples of a question, R = Q·N rows, T tokens.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from family import Sum, answer, question

CACHE_ARGUMENT = (
    "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
)
"""The argument's name changed within transformers 5."""
BOXED = re.compile(r"\\boxed\{(\d+)\}")
TOP_K = 20


@dataclass(frozen=True, slots=True)
class Samples:
    """Completions of one call: row r belongs to question r // N."""

    token_RT: NDArray[np.int64]
    confidence_RT: NDArray[np.float32]
    """Per token −(1/20)·Σ log p of the top 20, raw logits; NaN after the end token."""
    answer_R: list[str | None]
    last_step_R: NDArray[np.int64]
    """Index of the first token after the last blank line (0 where there is none)."""
    length_R: NDArray[np.int64]
    """Tokens of the completion, the end token counted."""


class Auroc(NamedTuple):
    """Area under the curve of confidence against being right; NaN when all are right or all are wrong."""

    pooled: float
    per_question: float


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[Sum],
    *,
    count: int,
    temperature: float,
    top_p: float,
    seed: int,
    max_new_tokens: int = 56,
    rows: int = 2048,
) -> Samples:
    """Draw ``count`` completions of every question, ``rows`` at a time."""
    generator = torch.Generator(model.device).manual_seed(seed)
    prompts = [question(numbers) for numbers in questions for _ in range(count)]
    with torch.no_grad():
        parts = [
            _decode(model, tokenizer, prompts[at : at + rows], temperature, top_p, max_new_tokens, generator)
            for at in range(0, len(prompts), rows)
        ]
    token_RT = np.concatenate([token for token, _ in parts])
    confidence_RT = np.concatenate([confidence for _, confidence in parts])
    texts = tokenizer.batch_decode(token_RT, skip_special_tokens=True)
    newline = tokenizer.convert_tokens_to_ids("\n")
    return Samples(
        token_RT=token_RT,
        confidence_RT=confidence_RT,
        answer_R=[read_answer(text) for text in texts],
        last_step_R=_last_step_start(token_RT, newline),
        length_R=np.isfinite(confidence_RT).sum(axis=1),
    )


def _decode(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    temperature: float,
    top_p: float,
    max_new_tokens: int,
    generator: torch.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    encoded: Any = tokenizer(prompts, return_tensors="pt", padding=True).to(model.device)
    mask = encoded["attention_mask"]
    token, position = encoded["input_ids"], (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache()
    done = torch.zeros(len(prompts), dtype=torch.bool, device=model.device)
    tokens, confidences = [], []
    for step in range(max_new_tokens):
        inputs = {"input_ids": token, "attention_mask": mask, "position_ids": position, CACHE_ARGUMENT: cache}
        logits = model(**inputs, use_cache=True).logits[:, -1].float()
        confidence = -logits.log_softmax(-1).topk(min(TOP_K, logits.shape[-1]), dim=-1).values.mean(-1)
        drawn = _choose(logits / temperature, top_p, generator).masked_fill(done, tokenizer.pad_token_id)
        confidences.append(confidence.masked_fill(done, torch.nan))
        tokens.append(drawn)
        done = done | (drawn == tokenizer.eos_token_id)
        if step % 8 == 7 and bool(done.all()):
            break
        token, position = drawn[:, None], position[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
    shape = (0, max_new_tokens - len(tokens))
    token_RT = torch.nn.functional.pad(torch.stack(tokens, 1), shape, value=tokenizer.pad_token_id)
    confidence_RT = torch.nn.functional.pad(torch.stack(confidences, 1), shape, value=torch.nan)
    return token_RT.cpu().numpy(), confidence_RT.cpu().numpy()


def _choose(logits: torch.Tensor, top_p: float, generator: torch.Generator) -> torch.Tensor:
    probability = logits.softmax(-1)
    if top_p < 1:
        ordered, index = probability.sort(dim=-1, descending=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
        probability = torch.zeros_like(probability).scatter(-1, index, ordered)
    return torch.multinomial(probability, 1, generator=generator)[:, 0]


def read_answer(text: str) -> str | None:
    """Return the number in the last complete box, without leading zeros, or None."""
    found = BOXED.findall(text)
    return str(int(found[-1])) if found else None


def _last_step_start(token_RT: NDArray[np.int64], newline: int) -> NDArray[np.int64]:
    breaks = (token_RT[:, 1:] == newline) & (token_RT[:, :-1] == newline)
    last = breaks.shape[1] - 1 - breaks[:, ::-1].argmax(axis=1)
    return np.where(breaks.any(axis=1), last + 2, 0)


def accuracy(samples: Samples, questions: Sequence[Sum]) -> float:
    """Return the share of right samples (avg@N)."""
    return float(right(samples, questions).mean())


def right(samples: Samples, questions: Sequence[Sum]) -> NDArray[np.bool_]:
    """Return whether each sample's answer is right, (Q, N)."""
    count = len(samples.answer_R) // len(questions)
    gold_R = [answer(numbers) for numbers in questions for _ in range(count)]
    equal = [given == gold for given, gold in zip(samples.answer_R, gold_R, strict=True)]
    return np.array(equal).reshape(len(questions), count)


def majority_accuracy(samples: Samples, questions: Sequence[Sum], size: int) -> float:
    """Return the share of right votes over disjoint groups of ``size`` samples (maj@size)."""
    count = len(samples.answer_R) // len(questions)
    hits = []
    for index, numbers in enumerate(questions):
        for start in range(0, count - size + 1, size):
            group = samples.answer_R[index * count + start : index * count + start + size]
            votes = Counter(given for given in group if given is not None)
            hits.append(bool(votes) and votes.most_common(1)[0][0] == answer(numbers))
    return float(np.mean(hits))


def mean_confidence(samples: Samples, *, last_step: bool) -> NDArray[np.float64]:
    """Return the trajectory confidence of each row, over the last step only or over the completion."""
    position_T = np.arange(samples.token_RT.shape[1])
    start_R = samples.last_step_R if last_step else np.zeros_like(samples.last_step_R)
    inside = (position_T >= start_R[:, None]) & (position_T < samples.length_R[:, None])
    total = np.where(inside, samples.confidence_RT, 0.0).sum(axis=1, dtype=np.float64)
    result: NDArray[np.float64] = total / np.maximum(inside.sum(axis=1), 1)
    return result


def auroc(score: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """Return P(score of a positive > score of a negative), ties counted half; NaN with one class only."""
    if positive.all() or not positive.any():
        return float("nan")
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (counts.cumsum() - (counts - 1) / 2)[inverse]
    n = int(positive.sum())
    return float((rank[positive].sum() - n * (n + 1) / 2) / (n * (positive.size - n)))


def confidence_auroc(samples: Samples, right_QN: NDArray[np.bool_], *, last_step: bool) -> Auroc:
    """Return how well confidence tells right from wrong: over all rows, and the mean over questions."""
    confidence_QN = mean_confidence(samples, last_step=last_step).reshape(right_QN.shape)
    each = [auroc(score, hits) for score, hits in zip(confidence_QN, right_QN, strict=True)]
    mixed = [value for value in each if value == value]
    inside = float(np.mean(mixed)) if mixed else float("nan")
    return Auroc(auroc(confidence_QN.ravel(), right_QN.ravel()), inside)


def report(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Sum], seed: int
) -> dict[str, float]:
    """Measure a model: 64 samples at temperature 1 and 64 at 0.6 with top-p 0.95, of every question."""
    hot = sample(model, tokenizer, questions, count=64, temperature=1.0, top_p=1.0, seed=seed)
    cold = sample(model, tokenizer, questions, count=64, temperature=0.6, top_p=0.95, seed=seed)
    right_QN = right(hot, questions)
    groups = [hot.answer_R[start : start + 64] for start in range(0, len(hot.answer_R), 64)]
    whole = confidence_auroc(hot, right_QN, last_step=False)
    last = confidence_auroc(hot, right_QN, last_step=True)
    top = [max(Counter(g for g in group if g).values(), default=0) / len(group) for group in groups]
    return {
        "avg": float(right_QN.mean()),
        "maj@16": majority_accuracy(hot, questions, 16),
        "maj@64": majority_accuracy(hot, questions, 64),
        "cold_avg": accuracy(cold, questions),
        "cold_maj@16": majority_accuracy(cold, questions, 16),
        "cold_maj@64": majority_accuracy(cold, questions, 64),
        "auroc_all": whole.pooled,
        "auroc_all_question": whole.per_question,
        "auroc_last": last.pooled,
        "auroc_last_question": last.per_question,
        "majority_ratio": float(np.mean(top)),
        "diversity": float(np.mean([len({g for g in group if g}) for group in groups])),
        "no_answer": float(np.mean([given is None for given in hot.answer_R])),
        "tokens": float(hot.length_R.mean()),
        "tokens_max": float(hot.length_R.max()),
    }
